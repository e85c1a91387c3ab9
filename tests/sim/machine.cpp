#include "sim/machine.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "launch/version.h"
#include "lockstep/error.h"

namespace lockstep::sim {
namespace {

using namespace std::chrono_literals;

Checks::AgentView view(const Agent& agent) {
  return {agent.phase(), agent.epoch(), agent.done()};
}

}  // namespace

Machine::Machine(Shared& shared, int index)
    : shared_(shared),
      index_(index),
      clock_(shared.scenario.nodes[static_cast<std::size_t>(index)].clock) {}

Time Machine::local_now() const {
  return clock_.local(shared_.queue.now());
}

std::string Machine::address_in(const char* network) const {
  const int number = shared_.scenario.nodes[static_cast<std::size_t>(index_)].address;
  return concat(network, number / 256, ".", number % 256);
}

NodeInfo Machine::info() const {
  const NodeScenario& scenario = shared_.scenario.nodes[static_cast<std::size_t>(index_)];
  return {.id = id_,
          .host = concat("n", index_),
          .address = address_in("10.0."),
          .node_rank = scenario.node_rank,
          .workers = scenario.workers,
          .role = "default",
          .pid = life_,
          .version = lockstep_version()};
}

int Machine::processes() const {
  return static_cast<int>(
      std::ranges::count_if(processes_, [](const Process& process) { return !process.stuck; }));
}

void Machine::count_processes() {
  shared_.checks.processes_of()[id_] = processes();
}

void Machine::later(Time delay, std::function<void()> action) {
  shared_.queue.after(delay, [this, life = life_, action = std::move(action)] {
    if (alive() && life_ == life) action();
  });
}

// ---- the process ----

void Machine::start_process() {
  ++life_;
  ++shared_.launchers;
  id_ = concat("n", index_, ".", life_);
  stop_signals_ = probe_port_ = 0;
  finish_.reset();
  shared_.trace.note(shared_.queue.now(), id_, "process starts");
  AgentOptions options = shared_.scenario.agent;
  options.self = info();
  options.hosts_coordinator = index_ == 0;
  if (shared_.scenario.nodes[static_cast<std::size_t>(index_)].other_run_id) {
    options.terms.run_id = "another";
  }
  if (index_ == 0) {
    start_coordinator();
  }
  heard_ = local_now();
  agent_.emplace(options, local_now());
  with_agent("start", [](Agent& agent) { return agent.start(); });
}

void Machine::start_coordinator() {
  coordinator_done_ = is_held_ = false;
  recorded_epoch_ = 0;
  held_.clear();
  ids_by_link_.clear();
  CoordinatorOptions options = shared_.scenario.coordinator;
  if (shared_.scenario.keeps_log) {
    // As it is read again: what the text does not hold is lost.
    if (log_) options.record = coordinator_record_from_json(to_json(*log_));
    options.former_host_is_gone = true;
  }
  coordinator_.emplace(options, local_now());
  logged_version_ = re_formed_ = 0;
  shared_.checks.coordinator_started(life_, options.record, local_now());
  arm_coordinator();
}

// Before anybody is told.
void Machine::write_log() {
  if (!shared_.scenario.keeps_log || coordinator_->record_version() == logged_version_) return;
  logged_version_ = coordinator_->record_version();
  log_ = coordinator_->record();
  if (log_->phase == CoordinatorRecord::Phase::finished) log_.reset();
}

void Machine::crash(bool power_lost) {
  if (!alive()) return;
  shared_.trace.note(shared_.queue.now(), id_, power_lost ? "loses power" : "crashes");
  shared_.network->node_died(index_, !power_lost);
  if (coordinator_) {
    shared_.network->coordinator_died(!power_lost);
    shared_.checks.coordinator_died();
  }
  process_is_gone();
  if (power_lost) return forget_processes();
  for (const Process& process : processes_) shared_.training.orphan(worker_id(process.number));
  shared_.queue.after(shared_.random.between(1ms, 100ms), [this] { forget_processes(); });
}

void Machine::process_is_gone() {
  shared_.checks.processes_of().erase(id_);
  --shared_.launchers;
  if (coordinator_) shared_.visits += coordinator_->visits();
  agent_.reset();
  coordinator_.reset();
  link_.reset();
  ++attempt_;
  ++agent_timer_;
  ++coordinator_timer_;
}

void Machine::exit_if_done() {
  if (!finish_ || (coordinator_ && !coordinator_done_)) return;
  shared_.trace.note(shared_.queue.now(), id_, "exits",
                     concat("code ", finish_->code, " ", finish_->reason));
  if (coordinator_) shared_.network->close_all_at_coordinator();
  process_is_gone();
}

void Machine::signal(int number) {
  if (!alive() || finish_) return;
  ++stop_signals_;
  shared_.checks.goes_by_itself(id_);
  with_agent("signal", [&](Agent& agent) {
    return agent.on_stop_signal(number, number == SIGINT ? "SIGINT" : "SIGTERM", local_now());
  });
  if (stop_signals_ < 2) return;
  const auto spared = std::ranges::count_if(
      processes_, [](const Process& process) { return process.worker && !process.killed; });
  shared_.checks.second_stop_signal(id_, static_cast<int>(spared));
}

void Machine::request_end(int number) {
  if (!coordinator_) return;
  with_coordinator("end request", [&](Coordinator& coordinator) {
    return coordinator.on_end_request(number, "the job is to end", local_now());
  });
}

void Machine::warn(std::optional<Time> time_left) {
  if (!alive() || finish_) return;
  with_agent("warning", [&](Agent& agent) {
    return agent.on_signal_for_workers({.signal = SIGUSR1, .time_left = time_left}, local_now());
  });
}

// ---- the agent ----

template <typename Call>
void Machine::with_agent(const char* what, Call call, const Message* message) {
  if (!alive()) return;
  shared_.trace.note(shared_.queue.now(), id_, what);
  const Checks::AgentView before = view(*agent_);
  const Agent::Actions actions = call(*agent_);
  const Checks::AgentView after = view(*agent_);
  if (message != nullptr) shared_.checks.agent_heard(id_, *message, before, after);
  shared_.checks.agent_moved(id_, before, after);
  for (const AgentAction& action : actions) carry_out(action);
  arm_agent();
  check();
  exit_if_done();
}

void Machine::report(const char* what, const std::function<Agent::Actions(Agent&)>& call) {
  with_agent(what, call);
}

void Machine::arm_agent() {
  const Time deadline = agent_->next_deadline();
  const std::uint64_t timer = ++agent_timer_;
  if (deadline == Time::max()) return;
  const Time late = shared_.random.between(0us, 2ms);
  shared_.queue.at(clock_.real(deadline) + late, [this, timer] {
    if (agent_timer_ != timer || !alive()) return;
    with_agent("time", [&](Agent& agent) { return agent.on_time(local_now()); });
  });
}

void Machine::connected(LinkId link) {
  link_ = link;
  with_agent("connected", [&](Agent& agent) { return agent.on_connected(local_now()); });
}

void Machine::connection_lost(const std::string& reason) {
  if (!alive()) return;
  link_.reset();
  shared_.trace.note(shared_.queue.now(), id_, "disconnected", reason);
  with_agent("", [&](Agent& agent) { return agent.on_disconnected(reason, local_now()); });
}

void Machine::arrived(const std::string& text) {
  if (!alive()) return;
  shared_.trace.note(shared_.queue.now(), id_, "gets", text);
  heard_ = local_now();
  const Message message = decode(text);
  answer(message);
  with_agent(
      "", [&](Agent& agent) { return agent.on_message(message, local_now()); }, &message);
}

void Machine::carry_out(const AgentAction& action) {
  if (std::get_if<Connect>(&action)) {
    shared_.network->connect(index_, ++attempt_);
  } else if (std::get_if<Disconnect>(&action)) {
    if (link_) shared_.network->close_at_node(*link_);
    link_.reset();
  } else if (const auto* send = std::get_if<Send>(&action)) {
    if (link_) shared_.network->send_to_coordinator(*link_, encode(send->message));
  } else if (const auto* open = std::get_if<OpenStore>(&action)) {
    open_store(open->membership);
  } else if (const auto* start = std::get_if<StartWorkers>(&action)) {
    start_workers(*start);
  } else if (const auto* revoke = std::get_if<RevokeWorkers>(&action)) {
    revoke_workers(*revoke);
  } else if (std::get_if<NoteRecovered>(&action)) {
    shared_.trace.note(shared_.queue.now(), id_, "recovered");
  } else if (const auto* signal = std::get_if<SignalWorkers>(&action)) {
    signal_workers(signal->signal);
  } else if (std::get_if<TellWorkers>(&action)) {
    shared_.checks.workers_warned();
  } else if (const auto* end = std::get_if<EndLeftovers>(&action)) {
    end_leftovers(end->gently);
  } else if (const auto* says = std::get_if<AgentSays>(&action)) {
    shared_.trace.note(shared_.queue.now(), id_, "says", says->text);
  } else if (const auto* done = std::get_if<AgentDone>(&action)) {
    finish_ = done->finish;
    const bool stuck = std::ranges::any_of(processes_, &Process::stuck);
    // The keeper ends what it can when its agent gives up.
    shared_.checks.agent_done(id_, done->finish, stuck ? 0 : processes());
    if (link_) shared_.network->close_at_node(*link_);
    link_.reset();
    ++attempt_;
  }
}

// ---- the coordinator ----

template <typename Call>
void Machine::with_coordinator(const char* what, Call call, const Message* message) {
  if (!coordinator_) return;
  shared_.trace.note(shared_.queue.now(), "coordinator", what);
  Checks::CoordinatorView before(*coordinator_);
  const Coordinator::Actions actions = call(*coordinator_);
  const Checks::CoordinatorView after(*coordinator_);
  before = shared_.checks.recalled(before, after, message, local_now());
  write_log();
  if (message != nullptr) shared_.checks.coordinator_heard(*message, before, after);
  for (const CoordinatorAction& action : actions) {
    if (const auto* say = std::get_if<Say>(&action)) shared_.checks.coordinator_said(say->text);
  }
  shared_.checks.coordinator_acted(before, after, local_now());
  hold_new_epoch();
  for (const CoordinatorAction& action : actions) carry_out_when_kept(action);
  arm_coordinator();
  exit_if_done();
}

void Machine::carry_out(const CoordinatorAction& action) {
  if (const auto* send = std::get_if<SendTo>(&action)) {
    shared_.checks.coordinator_sent(ids_by_link_[send->link], send->message, local_now());
    const auto* prepare = std::get_if<Prepare>(&send->message);
    if (prepare != nullptr && prepare->carries_over &&
        std::exchange(re_formed_, prepare->membership.epoch) != prepare->membership.epoch) {
      shared_.re_formed(prepare->membership);
    }
    shared_.network->send_to_node(send->link, encode(send->message));
  } else if (const auto* close = std::get_if<CloseLink>(&action)) {
    shared_.network->close_at_coordinator(close->link);
  } else if (const auto* say = std::get_if<Say>(&action)) {
    shared_.trace.note(shared_.queue.now(), "coordinator", "says", say->text);
  } else {
    coordinator_done_ = true;
    shared_.trace.note(shared_.queue.now(), "coordinator", "is done");
  }
}

void Machine::arm_coordinator() {
  const Time deadline = coordinator_->next_deadline();
  const std::uint64_t timer = ++coordinator_timer_;
  if (deadline == Time::max()) return;
  const Time late = shared_.random.between(0us, 2ms);
  shared_.queue.at(clock_.real(deadline) + late, [this, timer] {
    if (coordinator_timer_ != timer) return;
    with_coordinator("time",
                     [&](Coordinator& coordinator) { return coordinator.on_time(local_now()); });
  });
}

void Machine::arrived_at_coordinator(LinkId link, const std::string& text) {
  if (!coordinator_) return;
  shared_.trace.note(shared_.queue.now(), "coordinator", "gets", text);
  const Message message = decode(text);
  bool answered = false;
  const auto* join = std::get_if<Join>(&message);
  if (join != nullptr) ids_by_link_[link] = join->node.id;
  const bool was_over = coordinator_->phase() == Coordinator::Phase::finished;
  with_coordinator(
      "",
      [&](Coordinator& coordinator) {
        Coordinator::Actions actions = coordinator.on_message(link, message, local_now());
        answered = std::ranges::any_of(actions, [&](const CoordinatorAction& action) {
          const auto* send = std::get_if<SendTo>(&action);
          return send != nullptr && send->link == link;
        });
        return actions;
      },
      &message);
  if (join != nullptr && was_over) shared_.checks.join_answered_at_end(answered);
}

void Machine::lost_at_coordinator(LinkId link, const std::string& reason) {
  shared_.trace.note(shared_.queue.now(), "coordinator", "lost", ids_by_link_[link]);
  with_coordinator("", [&](Coordinator& coordinator) {
    return coordinator.on_closed(link, reason, local_now());
  });
}

}  // namespace lockstep::sim
