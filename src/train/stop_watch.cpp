#include "train/stop_watch.h"

#include <atomic>

#include "lockstep/world.h"

namespace lockstep {
namespace {

// A handler can reach nothing else.
std::atomic<int> received_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void note_signal(int number) {
  received_signal.store(number, std::memory_order_relaxed);
}

}  // namespace

StopWatch::StopWatch(const World& world, std::optional<std::chrono::milliseconds> time_limit)
    : world_(world), replaced_{{{.number = SIGTERM}, {.number = SIGUSR1}}} {
  if (time_limit) end_ = std::chrono::steady_clock::now() + *time_limit;
  received_signal = 0;
  for (Replaced& each : replaced_) {
    ::sigaction(each.number, nullptr, &each.before);
    if (each.before.sa_handler != SIG_DFL) continue;
    struct sigaction action = {};
    action.sa_handler = note_signal;
    action.sa_flags = SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    each.installed = ::sigaction(each.number, &action, nullptr) == 0;
  }
}

StopWatch::~StopWatch() {
  for (const Replaced& each : replaced_) {
    if (each.installed) ::sigaction(each.number, &each.before, nullptr);
  }
}

StopCause StopWatch::cause() const {
  if (received_signal.load(std::memory_order_relaxed) != 0) return StopCause::signal;
  if (world_.stop_requested()) return StopCause::launcher;
  if (end_ && std::chrono::steady_clock::now() >= *end_) return StopCause::time_limit;
  return StopCause::none;
}

std::string StopWatch::what() const {
  switch (cause()) {
    case StopCause::signal:
      return received_signal.load() == SIGTERM ? "SIGTERM" : "SIGUSR1";
    case StopCause::launcher:
      return "the launcher's request";
    case StopCause::time_limit:
      return "the time limit";
    case StopCause::none:
      break;
  }
  return "another rank's request";
}

}  // namespace lockstep
