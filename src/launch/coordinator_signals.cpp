// Signals for the workers of the whole job, and the time that a scheduler leaves it.
#include "core/signal_names.h"
#include "launch/coordinator.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Schedulers warn all nodes at about the same time. What comes from another node within this time
// is the same warning; from the same node it is another one.
constexpr Time kOneWarning = std::chrono::seconds(10);

}  // namespace

Coordinator::Actions Coordinator::on_signal(const PassSignal& signal, Time now) {
  now_ = now;
  actions_.clear();
  pass_signal("", "the launcher", signal);
  return take();
}

void Coordinator::handle(Node& node, const PassSignal& signal) {
  pass_signal(node.info.id, node.info.host, signal);
}

void Coordinator::pass_signal(const std::string& origin, const std::string& where,
                              const PassSignal& signal) {
  if (phase_ == Phase::finished || signal.signal == 0) return;
  const auto latest = signal_rounds_.find(signal.signal);
  const bool again = latest != signal_rounds_.end() && now_ - latest->second.since < kOneWarning &&
                     !latest->second.origins.contains(origin);
  if (!again) signal_rounds_[signal.signal] = {.since = now_, .origins = {}};
  SignalRound& round = signal_rounds_[signal.signal];
  round.origins.insert(origin);
  const bool tells_time = signal.time_left && !round.time_known;
  if (again && !tells_time) return;
  if (tells_time) {
    round.time_known = true;
    ends_at_ = now_ + *signal.time_left;
    if (record_version_ != 0) ++record_version_;
  }
  actions_.push_back(Say{concat(signal_name(signal.signal), " came to ", where,
                                again ? "" : ", and is passed on to the workers of all nodes",
                                tells_time ? concat(": the scheduler ends the job in ",
                                                    whole_seconds(*signal.time_left), " s")
                                           : "")});
  send_to_all(PassSignal{.signal = again ? 0 : signal.signal, .time_left = signal.time_left});
}

// To who comes when the others have been warned already.
void Coordinator::tell_time_left(Node& node) {
  if (phase_ == Phase::finished || !ends_at_ || *ends_at_ <= now_) return;
  send(node, PassSignal{.signal = 0, .time_left = *ends_at_ - now_});
}

}  // namespace lockstep
