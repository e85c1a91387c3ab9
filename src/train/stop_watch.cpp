#include "train/stop_watch.h"

#include <unistd.h>

#include <atomic>
#include <string_view>

#include "lockstep/world.h"

namespace lockstep {
namespace {

// A handler can reach nothing else.
std::atomic<int> received_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void note_signal(int number) {
  received_signal.store(number, std::memory_order_relaxed);
}

// Whoever sits there shall know that it was heard. A launcher says it for its workers.
void note_interrupt(int number) {
  constexpr std::string_view kHeard =
      "\nlockstep: stopping after this step; Ctrl-C again ends it\n";
  note_signal(number);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kHeard.data(), kHeard.size());
}

using Handler = void (*)(int);

Handler handler_for(int number) {
  const bool at_the_terminal = ::tcgetpgrp(STDERR_FILENO) == ::getpgrp();
  return number == SIGINT && at_the_terminal ? note_interrupt : note_signal;
}

const char* name_of_stop(int number) {
  switch (number) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "Ctrl-C";
    default:
      return "SIGUSR1";
  }
}

}  // namespace

StopWatch::StopWatch(const World& world, const Options& options)
    : world_(world), replaced_{{{.number = SIGTERM}, {.number = SIGUSR1}, {.number = SIGINT}}} {
  if (options.time_limit) end_ = std::chrono::steady_clock::now() + *options.time_limit;
  received_signal = 0;
  for (Replaced& each : replaced_) {
    ::sigaction(each.number, nullptr, &each.before);
    if (each.before.sa_handler != SIG_DFL) continue;
    if (each.number == SIGINT && !options.heeds_interrupt) continue;
    struct sigaction action = {};
    action.sa_handler = handler_for(each.number);
    action.sa_flags = SA_RESTART;
    // Who asks twice does not want to wait for a step or a save.
    if (each.number == SIGINT) action.sa_flags |= SA_RESETHAND;
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
      return name_of_stop(received_signal.load());
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
