#include "launch/coordinator_shell.h"

#include <algorithm>
#include <utility>

#include "launch/clock_skew.h"
#include "launch/ip_address.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// LinkServer counts from 1.
constexpr LinkId kLocalLink = 0;

// Signs of life are true whatever is decided.
bool may_wait(const CoordinatorAction& action) {
  const auto* to = std::get_if<SendTo>(&action);
  if (to == nullptr) return !std::holds_alternative<Say>(action);
  return !std::holds_alternative<Beat>(to->message) && !std::holds_alternative<Status>(to->message);
}

// A record's time goes by wall clocks, because a coordinator elsewhere may have written it.
CoordinatorOptions with_aged_record(CoordinatorOptions options) {
  if (!options.record || !options.record->time_left) return options;
  const Time age = std::max(Time(0), wall_clock_now() - options.record->written_at);
  options.record->time_left = std::max(Time(0), *options.record->time_left - age);
  return options;
}

}  // namespace

Time monotonic_now() {
  return std::chrono::duration_cast<Time>(EventLoop::Clock::now().time_since_epoch());
}

EventLoop::Clock::time_point to_time_point(Time time) {
  return time == Time::max() ? EventLoop::Clock::time_point::max()
                             : EventLoop::Clock::time_point(time);
}

CoordinatorShell::CoordinatorShell(EventLoop& loop, const CoordinatorOptions& options,
                                   std::optional<Remote> remote, Callbacks callbacks)
    : loop_(loop),
      local_store_(options.terms.local_store),
      coordinator_(with_aged_record(options), monotonic_now()),
      callbacks_(std::move(callbacks)),
      stacks_(loop, [this](LinkId link, const Message& message) { send(link, message); }) {
  if (remote) {
    server_ = std::make_unique<LinkServer>(loop, std::move(remote->listener),
                                           std::move(remote->options), server_callbacks());
    for (UniqueFd& listener : remote->more_listeners) server_->also_listen(std::move(listener));
  }
  set_timer();
}

CoordinatorShell::~CoordinatorShell() {
  *alive_ = false;
  loop_.cancel(timer_);
}

LinkServer::Callbacks CoordinatorShell::server_callbacks() {
  LinkServer::Callbacks events;
  events.on_open = [this](LinkServer::Id id, const std::string& peer, const std::string&) {
    links_[id] = {.address = peer, .host = "", .streams = nullptr};
  };
  events.on_message = [this](LinkServer::Id id, const std::string& text) {
    try {
      receive(id, text);
    } catch (const InvalidArgument& error) {
      refuse(id, error.what());
      perform(coordinator_.on_closed(id, error.what(), monotonic_now()));
    }
  };
  events.on_close = [this](LinkServer::Id id, const std::string& reason) {
    links_.erase(id);
    stacks_.on_closed(id);
    perform(coordinator_.on_closed(id, reason, monotonic_now()));
  };
  events.on_refused = [this](const std::string& address, const std::string& reason) {
    callbacks_.say(address.empty() ? reason : concat("turned away ", address, ": ", reason));
  };
  events.on_left = [this](const std::string& address, const std::string& reason) {
    callbacks_.say(concat(address, " left before the handshake was over: ", reason));
  };
  events.on_drained = [this](LinkServer::Id id) {
    const auto found = links_.find(id);
    if (found != links_.end() && found->second.streams) found->second.streams->on_drained();
  };
  return events;
}

void CoordinatorShell::receive(LinkServer::Id id, const std::string& text) {
  if (is_stream_message(text)) return receive_stream(id, text);
  Message message = decode(text);
  if (auto* join = std::get_if<Join>(&message)) {
    note_address(links_[id], *join);
    note_clock(*join);
  }
  take(id, message);
}

void CoordinatorShell::take(LinkId link, const Message& message) {
  if (const auto* join = std::get_if<Join>(&message)) {
    links_[link].host = join->node.host;
    if (callbacks_.asks_to_join) callbacks_.asks_to_join(join->node);
  }
  if (const auto* ask = std::get_if<AskStacks>(&message)) {
    std::map<LinkId, std::string> hosts;
    for (const auto& [id, each] : links_) {
      if (!each.host.empty()) hosts[id] = each.host;
    }
    stacks_.ask(link, *ask, hosts);
  } else if (const auto* found = std::get_if<FoundStacks>(&message)) {
    stacks_.on_found(link, *found);
  }
  perform(coordinator_.on_message(link, message, monotonic_now()));
}

void CoordinatorShell::receive_stream(LinkServer::Id id, std::string_view text) {
  if (!local_store_) throw InvalidArgument("a stream, which only --store local has");
  Link& link = links_[id];
  if (!link.streams) {
    link.streams = std::make_unique<StreamBundle>(
        loop_,
        StreamBundle::Callbacks{
            .send = [this, id](const std::string& message) { server_->send(id, message); },
            .queued_bytes = [this, id] { return server_->queued_bytes(id); },
            .connect = [this, address = link.address](
                           Epoch epoch) { return callbacks_.connect_store(epoch, address); }});
  }
  link.streams->on_message(text);
}

// A node that sits behind an address translation, or has several networks, comes from another
// address than it gives. Its workers' connections to the store will come from there as well.
void CoordinatorShell::note_address(Link& link, Join& join) {
  const auto seen = IpAddress::parse(link.address);
  const auto given = IpAddress::parse(join.node.address);
  join.node.seen_at.clear();  // not a node's to say
  if (!seen || !given || *seen == *given || seen->is_loopback()) return;
  join.node.seen_at = link.address;
  if (std::exchange(link.told_address, true)) return;
  callbacks_.say(concat("node ", join.node.host, " gives its address as ", join.node.address,
                        " and comes from ", link.address,
                        local_store_ ? "" : ": the store lets both in"));
}

void CoordinatorShell::note_clock(const Join& join) {
  if (join.wall_clock == Time(0)) return;
  const auto warning = clock_warning(join.node.host, join.wall_clock, wall_clock_now());
  if (warning && clocks_told_.insert(join.node.host).second) callbacks_.say(*warning);
}

// Who has not even joined cannot do better by trying again.
void CoordinatorShell::refuse(LinkServer::Id id, const std::string& reason) {
  const Link& link = links_[id];
  callbacks_.say(concat("refused ", link.host.empty() ? link.address : link.host, ": ", reason));
  if (link.host.empty()) server_->send(id, encode(Refused{reason}));
  close(id);
}

void CoordinatorShell::close(LinkServer::Id id) {
  links_.erase(id);
  stacks_.on_closed(id);
  server_->close(id);
}

void CoordinatorShell::request_end(int signal, const std::string& reason) {
  perform(coordinator_.on_end_request(signal, reason, monotonic_now()));
}

std::string CoordinatorShell::status() const {
  return coordinator_.status(monotonic_now());
}

// Later, not now: the agent is in the middle of what made it speak.
void CoordinatorShell::from_local_agent(const Message& message) {
  loop_.after({}, [this, message, alive = alive_] {
    if (*alive) take(kLocalLink, message);
  });
}

void CoordinatorShell::pass_signal(const PassSignal& signal) {
  perform(coordinator_.on_signal(signal, monotonic_now()));
}

void CoordinatorShell::perform(Coordinator::Actions actions) {
  keep_record();
  for (CoordinatorAction& action : actions) {
    if (unkept_epochs_ > 0 && may_wait(action)) {
      held_.push_back(std::move(action));
    } else {
      carry_out(action);
    }
  }
  set_timer();
}

void CoordinatorShell::keep_record() {
  if (!callbacks_.keep_record || coordinator_.record_version() == kept_version_) return;
  kept_version_ = coordinator_.record_version();
  const bool is_new = std::exchange(kept_epoch_, coordinator_.epoch()) != coordinator_.epoch();
  if (is_new) ++unkept_epochs_;
  CoordinatorRecord record = coordinator_.record();
  record.written_at = wall_clock_now();
  callbacks_.keep_record(record, [this, is_new, alive = alive_] {
    if (*alive && is_new && --unkept_epochs_ == 0) on_kept();
  });
  // The end of a job waits for nobody.
  if (coordinator_.phase() == Coordinator::Phase::finished && unkept_epochs_ > 0) {
    unkept_epochs_ = 0;
    on_kept();
  }
}

void CoordinatorShell::on_kept() {
  for (const CoordinatorAction& action : std::exchange(held_, {})) carry_out(action);
}

void CoordinatorShell::carry_out(const CoordinatorAction& action) {
  if (const auto* to = std::get_if<SendTo>(&action)) {
    send(to->link, to->message);
  } else if (const auto* closed = std::get_if<CloseLink>(&action)) {
    if (closed->link != kLocalLink) return close(closed->link);
    loop_.after({}, [this, alive = alive_] {
      if (*alive) callbacks_.local_agent_closed("the coordinator closed the connection");
    });
  } else if (const auto* say = std::get_if<Say>(&action)) {
    if (say->change && callbacks_.node_changed) {
      callbacks_.node_changed(say->text, *say->change);
    } else if (!say->text.empty()) {
      callbacks_.say(say->text);
    }
  } else {
    done_ = true;
    callbacks_.done();
  }
}

void CoordinatorShell::send(LinkId link, const Message& message) {
  const auto* prepare = std::get_if<Prepare>(&message);
  // An epoch that still waited for its record when the job ended is not announced any more.
  if (prepare != nullptr && coordinator_.phase() == Coordinator::Phase::finished) return;
  if (prepare != nullptr && local_store_) callbacks_.open_store(prepare->membership);
  if (prepare != nullptr && callbacks_.prepares) callbacks_.prepares(prepare->membership);
  if (link != kLocalLink) return server_->send(link, encode(message));
  loop_.after({}, [this, message, alive = alive_] {
    if (*alive) callbacks_.to_local_agent(message);
  });
}

void CoordinatorShell::set_timer() {
  loop_.cancel(timer_);
  const Time deadline = coordinator_.next_deadline();
  if (deadline == Time::max()) return;
  timer_ =
      loop_.at(to_time_point(deadline), [this] { perform(coordinator_.on_time(monotonic_now())); });
}

bool CoordinatorShell::done() const {
  return done_ && (server_ == nullptr || server_->queued_bytes() == 0);
}

}  // namespace lockstep
