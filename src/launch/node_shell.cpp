#include "launch/node_shell.h"

#include <sys/epoll.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>

#include "core/rank_list.h"
#include "core/signal_names.h"
#include "launch/addresses.h"
#include "launch/descendants.h"
#include "launch/kill_descendants.h"
#include "launch/node_change.h"
#include "launch/wall_time.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::string describe_stuck(const StuckProcesses& stuck) {
  std::string text = "processes that not even SIGKILL ends:";
  for (const StuckProcess& process : stuck.processes) text += concat(" ", process.description, ";");
  return text + " they may hold devices and memory until the kernel lets them go";
}

}  // namespace

NodeShell::NodeShell(JobPlan& plan, const NodeServices& services)
    : plan_(plan),
      services_(services),
      link_(make_coordinator_link(services.loop, plan, link_callbacks())),
      store_(services.loop, plan,
             {.say = [this](const std::string& text) { services_.console.warn(text); },
              .log =
                  [&pump = services.pump](const std::string& text) {
                    pump.print(STDERR_FILENO, concat("lockstep: store: ", text, "\n"));
                  }}),
      forwarder_(services.loop, forwarder_callbacks()),
      spares_(plan, {services.loop, services.keeper, services.pump, services.events,
                     services.directory.socket_path(), services.directory.path(),
                     [this](const std::string& text) { note(text); }}),
      workers_(plan, {services.keeper, services.pump, services.layout, services.events,
                      services.directory.socket_path(), services.directory.path(), spares_,
                      [this](int spare, const SlotPlace& place, const TakePlace& take) {
                        return hub_.give_place(spare, place, take);
                      }}),
      hub_(services.loop,
           {.socket_path = services.directory.socket_path(),
            .replaces = plan.agent.terms.in_place()},
           hub_callbacks()),
      stack_desk_(
          services.loop, services.directory.path(),
          [this](const Message& message) { link_->send(message); },
          [this](const std::string& text) { services_.console.warn(text); }),
      network_desk_(services.loop, plan, [this](const Message& message) { link_->send(message); }),
      hang_watch_(plan.options.hang_timeout),
      straggler_watch_(plan.options.straggler_time),
      time_left_finder_(services.loop, plan.environment, services.directory.path()) {
  // Only now: making the link may have changed who hosts the coordinator.
  agent_.emplace(plan.agent, monotonic_now());
  services_.loop.watch(services_.keeper.fd(), EPOLLIN, [this](std::uint32_t events) {
    if (events & EPOLLOUT) services_.keeper.flush();
    on_keeper();
    watch_keeper();
  });
  services_.loop.watch(services_.signals.fd(), EPOLLIN, [this](std::uint32_t) { on_signal(); });
  if (services_.lifeline >= 0) {
    services_.loop.watch(services_.lifeline, EPOLLIN, [this](std::uint32_t) { watch_lifeline(); });
  }
}

NodeShell::~NodeShell() {
  services_.loop.cancel(timer_);
  services_.loop.cancel(leftovers_poll_);
  services_.loop.cancel(hang_timer_);
  services_.loop.cancel(straggler_timer_);
  if (hang_search_) services_.loop.unwatch(hang_search_->pidfd());
  services_.loop.cancel(keeper_patience_);
  services_.loop.unwatch(services_.signals.fd());
  if (services_.lifeline >= 0) services_.loop.unwatch(services_.lifeline);
  if (!keeper_lost_) services_.loop.unwatch(services_.keeper.fd());
}

CoordinatorLink::Callbacks NodeShell::link_callbacks() {
  return {.connected =
              [this] {
                forwarder_.on_connected();
                perform(agent_->on_connected(monotonic_now()));
              },
          .message =
              [this](const Message& message) {
                stack_desk_.on_message(message);
                heard_end_ = heard_end_ || std::holds_alternative<Finish>(message);
                network_desk_.on_message(message);
                perform(agent_->on_message(message, monotonic_now()));
              },
          .disconnected =
              [this](const std::string& reason) {
                forwarder_.on_disconnected();
                network_desk_.close();
                perform(agent_->on_disconnected(reason, monotonic_now(), link_->reach()));
              },
          .say = [this](const std::string& text) { note(text); },
          .node_changed =
              [this](const std::string& text, const NodeChange& change) {
                if (!text.empty()) services_.console.note(text);
                services_.events.write(event_of(change, agent_ ? agent_->epoch() : 0));
              },
          .moved = [this](const std::string& where,
                          bool here) { agent_->set_coordinator(where, here); },
          .idle = [this] { stop_if_over(); },
          .open_store =
              [this](const Membership& membership) { attempt([&] { store_.open(membership); }); },
          .connect_store =
              [this](Epoch epoch, const std::string& address) {
                try {
                  return store_.connect(epoch, address);
                } catch (const SystemError& error) {
                  note(concat("a worker's connection to the store was refused: ", error.what()));
                  return UniqueFd();
                }
              },
          .stream_message = [this](std::string_view text) { forwarder_.on_message(text); },
          .drained = [this] { forwarder_.on_drained(); }};
}

StoreForwarder::Callbacks NodeShell::forwarder_callbacks() {
  return {.send = [this](const std::string& message) { link_->send_stream(message); },
          .queued_bytes = [this] { return link_->queued_bytes(); },
          .log = [this](const std::string& text) { note(text); }};
}

bool NodeShell::forwards_store() const {
  return plan_.agent.terms.local_store && !plan_.agent.hosts_coordinator;
}

Finish NodeShell::run() {
  record_ = {.run_id = plan_.options.rdzv_id,
             .host = plan_.host,
             .pid = ::getpid(),
             .start_time = process_start_time(::getpid()).value_or(0),
             .started = wall_time(std::chrono::system_clock::now()),
             .command = plan_.command.words,
             .log_directory = services_.layout.directory()};
  try {
    services_.directory.write_job(record_);
  } catch (const SystemError& error) {
    // Better now than when a log is missing.
    throw SystemError(concat(error.what(), "; make room there, or choose another place with ",
                             "--run-dir or TMPDIR"));
  }
  services_.events.write(
      {.kind = "job_start",
       .fields = {{"run_id", plan_.options.rdzv_id}, {"workers", std::int64_t{plan_.workers}}}});
  perform(agent_->start());
  watch_for_hangs();
  watch_for_stragglers();
  services_.loop.run();
  services_.events.write(
      {.kind = "job_end",
       .epoch = agent_->epoch(),
       .fields = {{"exit_code", std::int64_t{finish_->code}}, {"reason", finish_->reason}}});
  return *finish_;
}

void NodeShell::note(const std::string& text) {
  services_.console.note(text);
  services_.events.write(
      {.kind = "note", .epoch = agent_ ? agent_->epoch() : 0, .fields = {{"text", text}}});
}

// What `lockstep stack` finds the processes by.
void NodeShell::write_job(const Membership& membership) {
  record_.epoch = membership.epoch;
  record_.node_rank = membership.group_rank;
  record_.world_size = membership.places;
  record_.left_out = membership.left_out;
  record_.workers.clear();
  for (const auto& [id, worker] : workers_.running()) {
    record_.workers.push_back({.rank = worker.rank,
                               .local_rank = worker.local_rank,
                               .pid = worker.pid,
                               .start_time = process_start_time(worker.pid).value_or(0)});
  }
  try {
    services_.directory.write_job(record_);
  } catch (const SystemError& error) {
    services_.console.warn(error.what());  // a full disk is no reason to stop a job
  }
}

WorkerHub::Callbacks NodeShell::hub_callbacks() {
  const auto event = [this](const char* kind, int slot, std::vector<EventField> fields) {
    services_.events.write(
        {.kind = kind, .epoch = agent_->epoch(), .slot = slot, .fields = std::move(fields)});
  };
  return {
      .place_of = [this](pid_t pid) { return place_of(pid); },
      .on_hello =
          [this, event](int slot, const WorkerHello& hello) {
            forget_progress(slot);
            event("worker_hello", slot, {{"program", hello.program}});
            post([this, slot] { tell_time_left(slot); });
          },
      .on_heartbeat = [this](int slot, const auto& beat) { on_progress(slot, beat); },
      .on_lost_peers =
          [this, event](int slot, const WorkerLostPeers& lost) {
            event("peer_lost", slot,
                  {{"ranks", rank_numbers(places_of(lost.ranks))}, {"operation", lost.operation}});
          },
      .on_leaving =
          [this, event](int slot) {
            event("worker_leaving", slot, {});
            perform(agent_->on_worker_leaving(local_rank_of(slot), monotonic_now()));
          },
      .on_recovers = [this](int slot, const WorkerRecovers& told) { on_recovers(slot, told); },
      .on_rejected = [this](int slot, const WorkerRejected& told) { on_rejected(slot, told); },
      .on_spare = [this](int spare) { spares_.set_ready(spare); },
      .on_gone = [this](int slot, const std::string&) { forget_progress(slot); },
      .on_refused = [this](const std::string& reason) { note(reason); }};
}

void NodeShell::perform(Agent::Actions actions) {
  for (AgentAction& action : actions) {
    std::visit([this](auto& kind) { carry_out(kind); }, action);
  }
  watch_keeper();
  set_timer();
}

void NodeShell::carry_out(const Connect&) {
  link_->connect();
}
void NodeShell::carry_out(const Disconnect&) {
  link_->disconnect();
  forwarder_.on_disconnected();
}
void NodeShell::carry_out(const Send& send) {
  link_->send(send.message);
}
void NodeShell::carry_out(const AgentSays& says) {
  if (!plan_.options.headed) return note(says.text);
  // The head has said it, for all nodes.
  services_.events.write(
      {.kind = "note", .epoch = agent_->epoch(), .fields = {{"text", says.text}}});
}

void NodeShell::carry_out(const OpenStore& open) {
  attempt([&] {
    const int port =
        forwards_store() ? forwarder_.open(open.membership.epoch) : store_.open(open.membership);
    post([this, epoch = open.membership.epoch, port] {
      perform(agent_->on_store_open(epoch, port, monotonic_now()));
    });
  });
}

void NodeShell::carry_out(const StartWorkers& start) {
  services_.events.write(
      {.kind = "epoch_start",
       .epoch = start.membership.epoch,
       .slot = std::nullopt,
       .fields = {{"world_size", std::int64_t{start.membership.world_size()}},
                  {"restart_count", std::int64_t{start.membership.restart_count}}}});
  membership_ = start.membership;
  use_network_of(membership_);
  attempt([&] { workers_.start(start); });
  if (!start.carries_over) return;
  announce_world(start);
  if (workers_.all_started()) write_job(membership_);  // with spares nothing more is heard of it
}

// The coordinator may have chosen another of this node's addresses than it had given.
void NodeShell::use_network_of(const Membership& membership) {
  const auto address = IpAddress::parse(membership.self.address);
  if (plan_.one_node || !address || address->is_loopback()) return;
  plan_.interface = LocalMachine::current().interface_of(*address).value_or("");
}

void NodeShell::carry_out(const SignalWorkers& signal) {
  services_.events.write({.kind = "signal_workers",
                          .epoch = agent_->epoch(),
                          .fields = {{"signal", signal_name(signal.signal)}}});
  // Those that talk hear how long they have.
  if (signal.signal != SIGKILL) {
    const Time left = std::min(plan_.agent.grace, time_left().value_or(plan_.agent.grace));
    hub_.stop_all("the launcher stops the workers",
                  std::chrono::duration_cast<std::chrono::milliseconds>(left));
  }
  workers_.signal(signal.signal);
  spares_.stop();
}

void NodeShell::carry_out(const EndLeftovers& end) {
  services_.loop.cancel(leftovers_poll_);
  spares_.stop();
  if (end.gently && !keeper_lost_) return await_leftovers();
  if (!keeper_lost_) return services_.keeper.kill_leftovers(++leftovers_request_);
  kill_all_descendants(std::chrono::seconds(5));
  post([this] { perform(agent_->on_all_gone(monotonic_now())); });
}

// There is no notice of a descendant's end, so this looks again until none is left.
void NodeShell::await_leftovers() {
  if (descendants_of(services_.keeper.pid()).empty()) {
    return services_.keeper.kill_leftovers(++leftovers_request_);
  }
  leftovers_poll_ =
      services_.loop.after(std::chrono::milliseconds(50), [this] { await_leftovers(); });
}

void NodeShell::carry_out(const AgentDone& done) {
  finish_ = done.finish;
  workers_.close_ended_streams();
  // For those whose coordinator is here, and for what is still on its way to the kernel; but not
  // for ever.
  services_.loop.after(std::chrono::seconds(10), [this] { services_.loop.stop(); });
  stop_if_over();
}

// What cannot be done on this node ends the job, with the reason; it is no reason to crash.
void NodeShell::attempt(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    post([this, reason = std::string(error.what())] { on_broken(reason); });
  }
}

// The agent counts on an end of every worker that it asked for; those that were never started end
// here.
void NodeShell::on_broken(const std::string& reason) {
  perform(agent_->on_broken(reason, monotonic_now()));
  for (int local_rank = 0; local_rank < plan_.workers; ++local_rank) {
    if (workers_.holds(local_rank)) continue;
    perform(agent_->on_worker_end(
        {.epoch = agent_->epoch(), .local_rank = local_rank, .code = 1, .details = ""},
        monotonic_now()));
  }
}

// Later: the agent is in the middle of an event.
void NodeShell::post(std::function<void()> call) {
  services_.loop.after({}, std::move(call));
}

void NodeShell::on_keeper() {
  for (const KeeperEvent& event : services_.keeper.read()) {
    const Time now = monotonic_now();
    if (spares_.on(event)) continue;
    if (std::holds_alternative<WorkerStarted>(event)) {
      workers_.on(event);
      pass_owed_signals();
      if (workers_.all_started()) write_job(membership_);
    } else if (auto end = workers_.on(event)) {
      hub_.catch_up();
      if (end->code != 0) {
        end->progress = progress_of(membership_.self.first_rank + end->local_rank);
      }
      note_failure(*end);
      perform(agent_->on_worker_end(*end, now));
    } else if (const auto* gone = std::get_if<AllGone>(&event)) {
      if (gone->request != leftovers_request_) continue;
      // Nothing of this epoch needs it any more, here; other nodes may need the one that they
      // share.
      if (!plan_.agent.terms.local_store) store_.close();
      forwarder_.close();
      spares_.forget();
      perform(agent_->on_all_gone(now));
    } else if (const auto* stuck = std::get_if<StuckProcesses>(&event)) {
      perform(agent_->on_stuck(describe_stuck(*stuck), now));
    } else if (const auto* lost = std::get_if<KeeperLost>(&event)) {
      on_keeper_lost(lost->how);
    }
  }
}

// Commands that the keeper does not take at once wait for it, and nothing else waits for them.
void NodeShell::watch_keeper() {
  const bool pending = services_.keeper.has_pending();
  if (keeper_lost_ || pending == keeper_pending_) return;
  keeper_pending_ = pending;
  services_.loop.cancel(keeper_patience_);
  services_.loop.change(services_.keeper.fd(), pending ? EPOLLIN | EPOLLOUT : EPOLLIN);
  if (!pending) return;
  keeper_patience_ =
      services_.loop.after(Keeper::kPatience + std::chrono::milliseconds(100), [this] {
        services_.keeper.flush();
        keeper_pending_ = false;
        watch_keeper();
      });
}

// Of every attempt: the report at the end is about the last one.
void NodeShell::note_failure(const WorkerEnd& end) {
  if (end.details.empty() || agent_->phase() == NodePhase::stopping) return;
  services_.events.write({.kind = "worker_failed",
                          .epoch = end.epoch,
                          .slot = membership_.self.first_rank + end.local_rank,
                          .fields = {{"failure", RawJson{end.details}}}});
}

// The kernel has killed the workers with it; nobody is left to say so.
void NodeShell::on_keeper_lost(const std::string& how) {
  keeper_lost_ = true;
  spares_.stop();
  services_.loop.unwatch(services_.keeper.fd());
  const Time now = monotonic_now();
  perform(agent_->on_broken(concat("the process that keeps the workers ended: ", how), now));
  for (const auto& [id, worker] : workers_.running()) {
    perform(agent_->on_worker_end({.epoch = worker.epoch,
                                   .local_rank = worker.local_rank,
                                   .code = 128 + SIGKILL,
                                   .details = ""},
                                  now));
  }
}

void NodeShell::set_timer() {
  services_.loop.cancel(timer_);
  const Time deadline = agent_->next_deadline();
  if (deadline == Time::max()) return;
  timer_ = services_.loop.at(to_time_point(deadline),
                             [this] { perform(agent_->on_time(monotonic_now())); });
}

void NodeShell::stop_if_over() {
  if (!finish_) return;
  if (link_->over()) return services_.loop.stop();
  services_.loop.after(std::chrono::milliseconds(5), [this] { stop_if_over(); });
}

}  // namespace lockstep
