#include "launch/agent.h"

#include <algorithm>
#include <csignal>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// For processes that wait in the kernel, or take long to give their memory back.
constexpr Time kStuckPatience = std::chrono::seconds(60);

}  // namespace

Agent::Agent(const AgentOptions& options, Time now)
    : options_(options),
      apart_since_(now),
      heard_(now),
      last_sign_(now),
      next_beat_(now + options.terms.beat_interval),
      next_status_(now + options.status_interval),
      now_(now) {}

Agent::Actions Agent::start() {
  actions_.push_back(Connect{});
  return take();
}

// ---- the connection ----

void Agent::set_coordinator(const std::string& where, bool here) {
  options_.coordinator = where;
  options_.hosts_coordinator = here;
}

Agent::Actions Agent::on_connected(Time now) {
  now_ = heard_ = now;
  connected_ = true;
  send(join());
  refuse_missing();
  return take();
}

Agent::Actions Agent::on_disconnected(const std::string& reason, Time now, Reach reach) {
  now_ = now;
  note_reach(reach);
  connected_ = false;
  if (in_touch_) {
    in_touch_ = false;
    apart_since_ = heard_;  // a connection may have been dead for a while before it broke
  }
  apart_reason_ = reason;
  if (!goes()) retry_at_ = now + options_.retry_interval;
  return take();
}

Join Agent::join() const {
  std::vector<WorkerFailed> failures = failures_;
  for (WorkerFailed& failed : failures) failed.age = now_ - failed_at_.at(failed.rank);
  std::vector<RankRecovers> recovers;
  for (const Slot& slot : slots_) {
    if (slot.recovers) recovers.push_back(*slot.recovers);
  }
  return {.node = options_.self,
          .terms = options_.terms,
          .hosts_coordinator = options_.hosts_coordinator,
          .phase = phase_,
          .epoch = membership_.epoch,
          .restart_count = membership_.restart_count,
          .ready = ready_,
          .store_port = store_port_,
          .failures = std::move(failures),
          .recovers = std::move(recovers)};
}

Agent::Actions Agent::on_message(const Message& message, Time now) {
  now_ = heard_ = now;
  in_touch_ = was_in_touch_ = true;
  if (done_) return take();
  std::visit(
      [&](const auto& kind) {
        if constexpr (requires { handle(kind); }) handle(kind);
      },
      message);
  return take();
}

Agent::Actions Agent::on_time(Time now) {
  now_ = now;
  if (done_) return take();
  if (retry_at_ && now >= *retry_at_) {
    retry_at_.reset();
    actions_.push_back(Connect{});
  }
  if (now >= next_beat_) {
    // If this comes late it was this process that stood still (Ctrl-Z, a suspended container), and
    // what the coordinator said meanwhile has not been read yet.
    if (now - next_beat_ > options_.terms.beat_interval) heard_ = now;
    next_beat_ = now + options_.terms.beat_interval;
    if (connected_) {
      send(Beat{});
      if (now - heard_ > options_.terms.beat_limit) {
        actions_.push_back(Disconnect{});
        connected_ = false;
        if (!goes()) retry_at_ = now + options_.retry_interval;
        if (in_touch_) apart_since_ = heard_;
        in_touch_ = false;
        apart_reason_ = "it has gone silent";
      }
    }
    if (!in_touch_) lost_touch();
  }
  if (kill_at_ && now >= *kill_at_) kill_now();
  if (give_up_at_ && now >= *give_up_at_) give_up();
  return take();
}

Time Agent::next_deadline() const {
  if (done_) return Time::max();
  Time deadline = next_beat_;
  if (retry_at_) deadline = std::min(deadline, *retry_at_);
  if (kill_at_) deadline = std::min(deadline, *kill_at_);
  if (give_up_at_) deadline = std::min(deadline, *give_up_at_);
  return deadline;
}

// ---- commands ----

void Agent::handle(const Refused& refused) {
  end_with({.code = 1,
            .reason = concat("refused by the coordinator at ", options_.coordinator, ": ",
                             refused.reason),
            .failures = failures_,
            .stopped_ranks = {}});
}

void Agent::handle(const Status& status) {
  if (status.text == last_status_) return;  // it was sent away with it, and has asked again
  last_status_ = status.text;
  actions_.push_back(AgentSays{status.text});
}

void Agent::handle(const Prepare& prepare) {
  if (ending_) return;
  if (prepare.carries_over) return reform(prepare);
  // Repeated after a broken connection, or of an epoch that is over.
  if (phase_ != NodePhase::idle || prepare.membership.epoch <= membership_.epoch) return;
  membership_ = prepare.membership;
  phase_ = NodePhase::prepared;
  failures_.clear();
  failed_at_.clear();
  resume_ = ready_ = false;
  store_port_ = 0;
  carries_over_ = false;
  begins_ = true;
  replaced_.clear();
  slots_.assign(static_cast<std::size_t>(options_.self.workers), Slot{});
  if (opens_store()) return actions_.push_back(OpenStore{membership_});
  ready_if_prepared();
}

Agent::Actions Agent::on_store_open(Epoch epoch, int port, Time now) {
  now_ = now;
  const bool awaited = phase_ == NodePhase::prepared || phase_ == NodePhase::reforming;
  if (!awaited || epoch != membership_.epoch) return take();
  store_port_ = port;
  ready_if_prepared();
  return take();
}

void Agent::handle(const Start& start) {
  if (phase_ == NodePhase::reforming) return continue_workers(start);
  if (phase_ != NodePhase::prepared || start.epoch != membership_.epoch) return;
  phase_ = NodePhase::running;
  for (Slot& slot : slots_) {
    slot.state = SlotState::running;
    slot.started = membership_.epoch;
  }
  start_workers(start);
}

void Agent::start_workers(const Start& start) {
  StartWorkers workers{membership_,   start.master_addr, start.master_port,
                       carries_over_, begins_,           replaced_};
  begins_ = false;
  if (options_.terms.local_store) {
    workers.master_addr = "127.0.0.1";
    workers.master_port = store_port_;
  }
  actions_.push_back(std::move(workers));
}

void Agent::handle(const Stop& stop) {
  // Also of an epoch that this node has never heard of: the answer is that nothing of it is left.
  if (phase_ == NodePhase::idle) return send(Stopped{stop.epoch, {}});
  if (stop.epoch < membership_.epoch) return;
  stopped_through_ = std::max(stopped_through_, stop.epoch);
  if (phase_ == NodePhase::stopping) {
    if (stop.signal == SIGKILL) kill_now();  // asked twice
    return;
  }
  // Where the coordinator runs it has said so itself.
  if (!options_.hosts_coordinator && !stop.reason.empty()) {
    actions_.push_back(AgentSays{concat("stopping the workers: ", stop.reason)});
  }
  begin_stop(stop.signal);
}

void Agent::handle(const Finish& finish_message) {
  send(Leave{0, "the job has ended"});  // so that the coordinator need not wait
  end_with(finish_message);
}

void Agent::end_with(const Finish& ending) {
  ending_ = ending;
  awaits_end_ = leaves_by_signal_ = false;
  if (phase_ == NodePhase::idle) return finish(ending);
  if (phase_ != NodePhase::stopping) begin_stop(SIGTERM);
}

// ---- workers ----

Agent::Actions Agent::on_worker_end(const WorkerEnd& end, Time now) {
  now_ = now;
  const auto index = static_cast<std::size_t>(end.local_rank);
  if (index >= slots_.size()) return take();
  Slot& slot = slots_[index];
  if (slot.state != SlotState::running || slot.started != end.epoch) return take();
  if (phase_ == NodePhase::stopping) {
    slot.state = SlotState::stopped;
    if (end.code == kResumeCode) resume_ = true;
    stopped_if_gone();
    return take();
  }
  if (slot.is_replaced) {  // nobody waits for it any more
    slot.state = SlotState::failed;
    ready_if_prepared();
    return take();
  }
  if (end.code == 0) {
    slot.state = SlotState::succeeded;
    refuse_missing();
    const bool all = std::ranges::all_of(slots_, [](const Slot& each) {
      return each.state == SlotState::succeeded || each.state == SlotState::left_out;
    });
    const bool in_vain =
        std::ranges::any_of(slots_, [&](const Slot& each) { return is_missing(each); });
    if (all && !in_vain && phase_ == NodePhase::running) {
      phase_ = NodePhase::succeeded;
      send(WorkersSucceeded{membership_.epoch});
    }
    return take();
  }
  fail(slot, end);
  return take();
}

void Agent::fail(Slot& slot, const WorkerEnd& end) {
  slot.state = SlotState::failed;
  const int rank = rank_of(end.local_rank);
  failed_at_[rank] = now_;
  failures_.push_back({.epoch = membership_.epoch,
                       .rank = rank,
                       .code = end.code,
                       .signal = end.signal,
                       .started = end.started,
                       .age = Time(0),
                       .details = end.details,
                       .progress = end.progress});
  send(failures_.back());
}

void Agent::begin_stop(int signal) {
  phase_ = NodePhase::stopping;
  killed_ = leftovers_asked_ = false;
  kill_at_ = now_ + options_.grace;
  signalled_ = any_running();
  if (signalled_) actions_.push_back(SignalWorkers{signal});
  stopped_if_gone();
}

// Workers and all that they have started; what cannot be ended will be named.
void Agent::kill_now() {
  kill_at_.reset();
  if (killed_ || phase_ != NodePhase::stopping) return;
  killed_ = leftovers_asked_ = true;
  if (any_running()) actions_.push_back(SignalWorkers{SIGKILL});
  actions_.push_back(EndLeftovers{.gently = false});
}

// A worker may have been a script whose program is still saving: it has the rest of the time.
void Agent::stopped_if_gone() {
  if (phase_ != NodePhase::stopping || any_running() || leftovers_asked_) return;
  leftovers_asked_ = true;
  actions_.push_back(EndLeftovers{.gently = signalled_});
}

Agent::Actions Agent::on_all_gone(Time now) {
  now_ = now;
  if (phase_ == NodePhase::stopping && leftovers_asked_) all_stopped();
  return take();
}

Agent::Actions Agent::on_stuck(const std::string& text, Time now) {
  now_ = now;
  if (done_) return take();
  actions_.push_back(AgentSays{text});
  stuck_ = text;
  if (!give_up_at_) give_up_at_ = now + kStuckPatience;
  return take();
}

// Nothing can be started beside processes that hold the devices, and nothing more can be done.
void Agent::give_up() {
  give_up_at_.reset();
  send(Leave{0, stuck_});
  if (options_.hosts_coordinator) send(Leave{0, stuck_});  // twice: without waiting for others
  finish(ending_.value_or(Finish{.code = failures_.empty() ? 1 : failures_.front().code,
                                 .reason = stuck_,
                                 .failures = failures_,
                                 .stopped_ranks = {}}));
}

void Agent::all_stopped() {
  phase_ = NodePhase::idle;
  kill_at_.reset();
  give_up_at_.reset();
  for (Slot& slot : slots_) {
    if (slot.state == SlotState::running) slot.state = SlotState::stopped;
  }
  stopped_through_ = std::max(stopped_through_, membership_.epoch);
  send(Stopped{stopped_through_, ranks_in(SlotState::stopped), resume_});
  if (ending_ && !awaits_end_) finish(*ending_);
}

// ---- endings ----

Agent::Actions Agent::on_stop_signal(int signal, const std::string& name, Time now) {
  now_ = now;
  if (done_) return take();
  if (++stop_signals_ > 1) {
    kill_now();
    if (awaits_end_) send(Leave{signal, ending_->reason});  // nor shall the coordinator wait
    if (stop_signals_ > 2 && ending_) finish(*ending_);     // nor for what cannot be killed
    return take();
  }
  leave(signal, concat("the launcher on ", options_.self.host, " got ", name));
  return take();
}

Agent::Actions Agent::on_signal_for_workers(const PassSignal& signal, Time now) {
  now_ = now;
  if (done_) return take();
  if (connected_ && in_touch_) {
    send(signal);
  } else {
    handle(signal);
  }
  return take();
}

void Agent::handle(const PassSignal& signal) {
  actions_.push_back(TellWorkers{signal.signal, signal.time_left});
}

Agent::Actions Agent::on_broken(const std::string& reason, Time now) {
  now_ = now;
  if (!done_) leave(0, reason);
  return take();
}

void Agent::leave(int signal, const std::string& reason) {
  if (ending_) return;
  ending_ = Finish{.code = signal != 0 ? 128 + signal : 1,
                   .reason = reason,
                   .failures = failures_,
                   .stopped_ranks = {}};
  leaves_by_signal_ = signal != 0;
  send(Leave{signal, reason});
  // The coordinator on this node will say how the job ended; one elsewhere says nothing more.
  awaits_end_ = options_.hosts_coordinator && connected_;
  if (phase_ == NodePhase::idle) {
    if (!awaits_end_) finish(*ending_);
    return;
  }
  if (phase_ != NodePhase::stopping) begin_stop(signal != 0 ? signal : SIGTERM);
}

void Agent::finish(const Finish& finish_message) {
  done_ = true;
  actions_.push_back(AgentDone{finish_message});
  // Of a node that a signal ended. Where the coordinator says how the job ended, that counts.
  auto& code = std::get<AgentDone>(actions_.back()).finish.code;
  if (resume_ && leaves_by_signal_) code = kResumeCode;
}

bool Agent::any_running() const {
  return std::ranges::any_of(slots_,
                             [](const Slot& slot) { return slot.state == SlotState::running; });
}

std::vector<int> Agent::ranks_in(SlotState state) const {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].state == state) {
      ranks.push_back(membership_.self.first_rank + static_cast<int>(i));
    }
  }
  return ranks;
}

void Agent::send(const Message& message) {
  if (connected_) actions_.push_back(Send{message});
}

}  // namespace lockstep
