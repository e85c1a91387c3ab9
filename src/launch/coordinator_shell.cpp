#include "launch/coordinator_shell.h"

#include "lockstep/error.h"

namespace lockstep {
namespace {

// LinkServer counts from 1.
constexpr LinkId kLocalLink = 0;

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
    : loop_(loop), coordinator_(options, monotonic_now()), callbacks_(std::move(callbacks)) {
  if (remote) {
    LinkServer::Callbacks events;
    events.on_open = [](LinkServer::Id, const std::string&, const std::string&) {};
    events.on_message = [this](LinkServer::Id id, const std::string& text) {
      try {
        perform(coordinator_.on_message(id, decode(text), monotonic_now()));
      } catch (const InvalidArgument& error) {
        callbacks_.say(concat("closed a connection: ", error.what()));
        server_->close(id);
        perform(coordinator_.on_closed(id, error.what(), monotonic_now()));
      }
    };
    events.on_close = [this](LinkServer::Id id, const std::string& reason) {
      perform(coordinator_.on_closed(id, reason, monotonic_now()));
    };
    events.on_refused = [this](const std::string& address, const std::string& reason) {
      callbacks_.say(concat("turned away ", address, ": ", reason));
    };
    server_ = std::make_unique<LinkServer>(loop, std::move(remote->listener),
                                           std::move(remote->options), std::move(events));
  }
  set_timer();
}

CoordinatorShell::~CoordinatorShell() {
  *alive_ = false;
  loop_.cancel(timer_);
}

// Later, not now: the agent is in the middle of what made it speak.
void CoordinatorShell::from_local_agent(const Message& message) {
  loop_.after({}, [this, message, alive = alive_] {
    if (*alive) perform(coordinator_.on_message(kLocalLink, message, monotonic_now()));
  });
}

void CoordinatorShell::perform(Coordinator::Actions actions) {
  for (CoordinatorAction& action : actions) {
    if (const auto* send = std::get_if<SendTo>(&action)) {
      if (send->link != kLocalLink) {
        server_->send(send->link, encode(send->message));
        continue;
      }
      loop_.after({}, [this, message = send->message, alive = alive_] {
        if (*alive) callbacks_.to_local_agent(message);
      });
    } else if (const auto* close = std::get_if<CloseLink>(&action)) {
      if (close->link != kLocalLink) {
        server_->close(close->link);
        continue;
      }
      loop_.after({}, [this, alive = alive_] {
        if (*alive) callbacks_.local_agent_closed("the coordinator closed the connection");
      });
    } else if (const auto* say = std::get_if<Say>(&action)) {
      callbacks_.say(say->text);
    } else {
      done_ = true;
      callbacks_.done();
    }
  }
  set_timer();
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
