#include "cluster/head.h"

#include <sys/epoll.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <utility>

#include "cluster/head_place.h"
#include "cluster/start_failure.h"
#include "core/signal_names.h"
#include "launch/addresses.h"
#include "launch/coordinator_link.h"
#include "launch/node_change.h"
#include "launch/wall_time.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kStatusInterval{5};
constexpr seconds kFirstPause{1};
constexpr seconds kLongestPause{30};
// For agents to end when all has been said, and then to be asked.
constexpr seconds kAgentsEnd{10};
constexpr seconds kAgentsHangUp{5};

JobPlan plan_of_store(const HeadPlan& plan) {
  JobPlan store{.options = plan.options, .environment = plan.environment};
  store.agent.terms = plan.coordinator.terms;
  store.store_address = "127.0.0.1";
  store.share_store = shares_store(plan.environment);
  return store;
}

}  // namespace

Head::Head(HeadPlan plan, const HeadServices& services)
    : plan_(std::move(plan)),
      services_(services),
      store_plan_(plan_of_store(plan_)),
      store_(services.loop, store_plan_,
             {.say = [this](const std::string& text) { services_.console.warn(text); },
              .log =
                  [&pump = services.pump](const std::string& text) {
                    pump.print(STDERR_FILENO, concat("lockstep: store: ", text, "\n"));
                  }}),
      time_left_finder_(services.loop, plan_.environment, services.directory.path()),
      stack_desk_(
          services.loop, services.directory.path(),
          [this](const Message& message) { coordinator_->from_local_agent(message); },
          [this](const std::string& text) { services_.console.warn(text); }) {
  HeadPort port = open_head_port(plan_);
  UniqueFd first = std::move(port.listeners.front());
  port.listeners.erase(port.listeners.begin());
  coordinator_ = std::make_unique<CoordinatorShell>(
      services.loop, plan_.coordinator,
      CoordinatorShell::Remote{
          .listener = std::move(first),
          .options = {.secret = plan_.secret, .tls = plan_.options.tls, .run_id = kLinkProtocol},
          .more_listeners = std::move(port.listeners)},
      coordinator_callbacks());
  for (std::size_t i = 0; i < plan_.nodes.size(); ++i) {
    nodes_.push_back({.plan = plan_.nodes[i], .starter = nullptr});
    nodes_.back().plan.brief.endpoints = std::move(port.endpoints[i]);
  }
  services_.loop.watch(services_.signals.fd(), EPOLLIN, [this](std::uint32_t) { on_signal(); });
}

Head::~Head() {
  services_.loop.unwatch(services_.signals.fd());
  services_.loop.cancel(status_timer_);
  services_.loop.cancel(wind_up_timer_);
  for (const Node& node : nodes_) services_.loop.cancel(node.restart);
}

CoordinatorShell::Callbacks Head::coordinator_callbacks() {
  return {.to_local_agent = [this](const Message& message) { stack_desk_.on_message(message); },
          .local_agent_closed = [](const std::string&) {},
          .say = [this](const std::string& text) { note(text); },
          .done = [this] { wind_up(); },
          .open_store = [this](const Membership& membership) { store_.open(membership); },
          .connect_store =
              [this](Epoch epoch, const std::string& address) {
                try {
                  return store_.connect(epoch, address);
                } catch (const SystemError& error) {
                  services_.console.warn(
                      concat("a worker's connection to the store was refused: ", error.what()));
                  return UniqueFd();
                }
              },
          .node_changed =
              [this](const std::string& text, const NodeChange& change) {
                if (!text.empty()) services_.console.note(text);
                services_.events.write(event_of(change, epoch()));
              },
          .asks_to_join = [this](const NodeInfo& info) { on_join(info); },
          .prepares =
              [this](const Membership& membership) {
                if (record_.epoch == membership.epoch) return;
                record_.epoch = membership.epoch;
                record_.world_size = membership.places;
                record_.left_out = membership.left_out;
                write_job();
              }};
}

void Head::note(const std::string& text) {
  services_.console.note(text);
  services_.events.write({.kind = "note", .epoch = epoch(), .fields = {{"text", text}}});
}

// What `lockstep stack` finds the job by.
void Head::write_job() {
  try {
    services_.directory.write_job(record_);
  } catch (const SystemError& error) {
    services_.console.warn(error.what());  // a full disk is no reason to stop a job
  }
}

Finish Head::run() {
  record_ = {.run_id = plan_.options.rdzv_id,
             .host = LocalMachine::current().name,
             .pid = ::getpid(),
             .start_time = process_start_time(::getpid()).value_or(0),
             .started = wall_time(std::chrono::system_clock::now()),
             .command = {plan_.options.script},
             .log_directory = {},
             .workers = {}};
  write_job();
  services_.events.write({.kind = "job_start",
                          .fields = {{"run_id", plan_.options.rdzv_id},
                                     {"nodes", static_cast<std::int64_t>(nodes_.size())}}});
  for (std::size_t i = 0; i < nodes_.size(); ++i) start(i);
  status_timer_ = services_.loop.after(kStatusInterval, [this] { say_status(); });
  services_.loop.run();
  const Finish& finish = coordinator_->outcome();
  services_.events.write(
      {.kind = "job_end",
       .epoch = epoch(),
       .fields = {{"exit_code", std::int64_t{finish.code}}, {"reason", finish.reason}}});
  return finish;
}

void Head::start(std::size_t index) {
  Node& node = nodes_[index];
  node.joined = false;
  // What comes before the agent has joined explains a failure, and is noise otherwise.
  const UniqueFd out = services_.pump.open(
      stream(index, STDOUT_FILENO), {.file = "", .console = true, .console_fd = STDOUT_FILENO});
  const UniqueFd err = services_.pump.open(
      stream(index, STDERR_FILENO),
      {.file = "", .console = true, .console_fd = STDERR_FILENO, .held_back = true});
  try {
    const StartCommand command = start_command(node.plan.starter, node.plan.host, {"agent"},
                                               encode(node.plan.brief), node.plan.brief.node_rank);
    node.starter = std::make_unique<Starter>(
        services_.loop, command, Starter::Output{.stdout_fd = out.get(), .stderr_fd = err.get()},
        [this, index](const ExitStatus& status) { on_end(index, status); });
  } catch (const Error& error) {
    // Later: who asked for the start is in the middle of something.
    services_.loop.after(
        {}, [this, host = node.plan.host.name, reason = std::string(error.what())] {
          coordinator_->request_end(0, concat("node ", host, " could not be started: ", reason));
        });
  }
}

void Head::on_join(const NodeInfo& info) {
  if (!info.node_rank || static_cast<std::size_t>(*info.node_rank) >= nodes_.size()) return;
  Node& node = nodes_[static_cast<std::size_t>(*info.node_rank)];
  node.pause = milliseconds(0);
  if (std::exchange(node.joined, true)) return;
  services_.pump.redirect(stream(static_cast<std::size_t>(*info.node_rank), STDERR_FILENO),
                          {.file = "", .console = true, .console_fd = STDERR_FILENO});
}

bool Head::can_go_on() const {
  const JobTerms& terms = plan_.coordinator.terms;
  return terms.elastic() || terms.max_restarts > 0 || terms.min_world > 0;
}

void Head::on_end(std::size_t index, const ExitStatus& status) {
  Node& node = nodes_[index];
  const std::vector<std::string> words = services_.pump.tail(stream(index, STDERR_FILENO));
  services_.pump.close(stream(index, STDOUT_FILENO));
  services_.pump.close(stream(index, STDERR_FILENO));
  // Later: this is called by the very object.
  services_.loop.after({}, [starter = std::shared_ptr<Starter>(std::move(node.starter))] {});
  if (coordinator_->phase() == Coordinator::Phase::finished) return wind_up();
  const bool begun = coordinator_->epoch() != 0;
  // ssh says 255 for a process that was killed there, and for itself.
  const bool killed = status.signal != 0 || status.exit_code == 255;
  const std::string why = node.joined && (begun || killed)
                              ? concat("the launcher on ", node.plan.host.name, " ended (",
                                       status.describe(), ")", begun ? "" : " before the job began")
                              : explain_start_failure(node.plan.starter.kind, node.plan.host.name,
                                                      node.plan.starter.lockstep, status, words);
  const bool may_wait = can_go_on() && (begun || plan_.coordinator.terms.elastic());
  if (may_wait) return start_later(index, why);
  if (begun) return;  // the coordinator notices, and decides what follows
  if (!node.joined) last_words_ = words;
  coordinator_->request_end(0, why);
}

void Head::start_later(std::size_t index, const std::string& why) {
  Node& node = nodes_[index];
  node.pause = std::clamp<milliseconds>(node.pause * 2, kFirstPause, kLongestPause);
  note(concat(why, "; starting it again in ", whole_seconds(node.pause), " s"));
  node.restart = services_.loop.after(node.pause, [this, index] {
    if (coordinator_->phase() != Coordinator::Phase::finished) start(index);
  });
}

void Head::on_signal() {
  while (const auto number = services_.signals.next()) {
    if (*number == SIGWINCH) continue;
    if (!services_.signals.is_stop(*number)) {
      time_left_finder_.find([this, number](std::optional<seconds> left) {
        coordinator_->pass_signal({.signal = *number, .time_left = left});
      });
      continue;
    }
    note(concat("got ", signal_name(*number), ": stopping the workers"));
    coordinator_->request_end(*number, concat("the head of the job got ", signal_name(*number)));
  }
}

void Head::say_status() {
  if (coordinator_->phase() == Coordinator::Phase::finished) return;
  status_timer_ = services_.loop.after(kStatusInterval, [this] { say_status(); });
  if (coordinator_->phase() != Coordinator::Phase::gathering) return;
  services_.console.note(coordinator_->status());
}

// All has been said; what remains is that agents end.
void Head::wind_up() {
  if (coordinator_->phase() != Coordinator::Phase::finished) return;
  const auto now = EventLoop::Clock::now();
  if (!over_since_) over_since_ = now;
  services_.loop.cancel(wind_up_timer_);
  const bool all_ended =
      std::ranges::none_of(nodes_, [](const Node& node) { return node.starter != nullptr; });
  const auto over_for = now - *over_since_;
  // Those that have not joined never hear the end.
  for (Node& node : nodes_) {
    if (node.starter && (!node.joined || over_for > kAgentsEnd)) node.starter->hang_up();
  }
  if ((coordinator_->done() && all_ended) || over_for > kAgentsEnd + kAgentsHangUp) {
    return services_.loop.stop();
  }
  wind_up_timer_ = services_.loop.after(milliseconds(20), [this] { wind_up(); });
}

}  // namespace lockstep
