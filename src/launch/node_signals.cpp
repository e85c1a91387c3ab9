// Signals that come to a node's launcher, and the time that a scheduler leaves the job.
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "core/rank_list.h"
#include "core/signal_names.h"
#include "launch/caught_signals.h"
#include "launch/node_shell.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// With more time than this the signal is not about the end: workers that talk are not asked to
// stop.
constexpr Time kLongestWarning = std::chrono::hours(1);

constexpr const char* kTimeIsOver = "the scheduler ends the job soon";

std::chrono::milliseconds to_milliseconds(Time time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time);
}

}  // namespace

void NodeShell::on_signal() {
  while (const auto number = services_.signals.next()) {
    if (services_.signals.is_stop(*number)) {
      note(concat("got ", signal_name(*number), ": stopping the workers"));
      perform(agent_->on_stop_signal(*number, signal_name(*number), monotonic_now()));
    } else if (*number == SIGWINCH) {
      services_.pump.resize_terminals();
      workers_.signal(*number);
      watch_keeper();
    } else {
      time_left_finder_.find([this, number](std::optional<std::chrono::seconds> left) {
        perform(
            agent_->on_signal_for_workers({.signal = *number, .time_left = left}, monotonic_now()));
      });
    }
  }
}

void NodeShell::watch_lifeline() {
  std::array<char, 256> ignored;
  const ssize_t count = ::read(services_.lifeline, ignored.data(), ignored.size());
  if (count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR))) return;
  services_.loop.unwatch(std::exchange(services_.lifeline, -1));
  note("who started this launcher is gone: stopping the workers");
  perform(agent_->on_stop_signal(SIGTERM, "SIGTERM: who started it is gone", monotonic_now()));
}

void NodeShell::carry_out(const TellWorkers& tell) {
  if (tell.time_left) ends_at_ = monotonic_now() + *tell.time_left;
  std::vector<EventField> fields;
  if (tell.signal != 0) fields.push_back({"signal", signal_name(tell.signal)});
  if (tell.time_left) fields.push_back({"seconds_left", whole_seconds(*tell.time_left)});
  services_.events.write({.kind = "warning", .epoch = agent_->epoch(), .fields = fields});
  // Those that talk hear of the time first, so that it is known when the signal comes.
  for (const auto& [id, worker] : workers_.running()) tell_time_left(worker.rank);
  if (tell.signal != 0) pass_to_workers(tell.signal);
}

void NodeShell::pass_to_workers(int signal) {
  std::vector<int> spared;
  for (const auto& [id, worker] : workers_.running()) {
    if (worker.pid == 0) {
      owed_signals_[id].insert(signal);
      continue;
    }
    if (signal_who_catches(worker.pid, signal) == 0 && !hub_.connected(worker.rank)) {
      spared.push_back(worker.rank);
    }
  }
  if (spared.empty()) return;
  note(concat(signal_name(signal), " is not sent to ", list_ranks(spared),
              ": a program that does not catch it would die of it"));
}

// A worker may be at work before the keeper's word of its start has been read.
void NodeShell::pass_owed_signals() {
  if (owed_signals_.empty()) return;
  std::erase_if(owed_signals_, [&](const auto& owed) {
    const auto worker = workers_.running().find(owed.first);
    if (worker == workers_.running().end()) return true;  // it has ended
    if (worker->second.pid == 0) return false;
    for (const int signal : owed.second) signal_who_catches(worker->second.pid, signal);
    return true;
  });
}

std::optional<Time> NodeShell::time_left() const {
  if (!ends_at_) return std::nullopt;
  const Time left = *ends_at_ - monotonic_now();
  if (left > kLongestWarning) return std::nullopt;
  return std::max(left, Time(0));
}

// Not when they are being stopped: they have been told how long they have.
void NodeShell::tell_time_left(int slot) {
  const auto left = time_left();
  if (!left || agent_->phase() == NodePhase::stopping) return;
  hub_.stop(slot, kTimeIsOver, to_milliseconds(*left));
}

}  // namespace lockstep
