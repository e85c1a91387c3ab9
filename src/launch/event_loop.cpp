#include "launch/event_loop.h"

#include <sys/epoll.h>
#include <algorithm>
#include <array>
#include <cerrno>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// What epoll hands back: the descriptor and the low half of its generation.
std::uint64_t pack(int fd, std::uint64_t generation) {
  return (generation << 32) | static_cast<std::uint32_t>(fd);
}

void control(int epoll, int operation, int fd, std::uint32_t events, std::uint64_t generation) {
  epoll_event event{.events = events, .data = {.u64 = pack(fd, generation)}};
  if (::epoll_ctl(epoll, operation, fd, &event) != 0) {
    throw_errno(concat("epoll_ctl of descriptor ", fd));
  }
}

}  // namespace

EventLoop::EventLoop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw_errno("epoll_create1");
}

void EventLoop::watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> ready) {
  auto watch = std::make_shared<Watch>(Watch{++counter_, std::move(ready)});
  control(epoll_.get(), EPOLL_CTL_ADD, fd, events, watch->generation);
  watches_[fd] = std::move(watch);
}

void EventLoop::change(int fd, std::uint32_t events) {
  control(epoll_.get(), EPOLL_CTL_MOD, fd, events, watches_.at(fd)->generation);
}

void EventLoop::unwatch(int fd) {
  if (watches_.erase(fd) == 0) return;
  control(epoll_.get(), EPOLL_CTL_DEL, fd, 0, 0);
}

EventLoop::TimerId EventLoop::at(Clock::time_point when, std::function<void()> due) {
  const TimerId id(when, ++counter_);
  timers_.emplace(id, std::move(due));
  return id;
}

void EventLoop::run() {
  stopped_ = false;
  while (!stopped_) run_once(std::chrono::hours(1));
}

void EventLoop::run_once(std::chrono::milliseconds limit) {
  run_timers();
  if (stopped_) return;
  std::array<epoll_event, 64> events;
  const auto wait = until_next_timer(limit);
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(wait.count()));
  if (count < 0 && errno != EINTR) throw_errno("epoll_wait");
  for (int i = 0; i < count; ++i) {
    const std::uint64_t id = events[i].data.u64;
    const auto found = watches_.find(static_cast<int>(id & 0xffffffff));
    // An earlier callback of this round may have dropped it, or put another in its place.
    if (found == watches_.end()) continue;
    const std::shared_ptr<Watch> watch = found->second;
    if (pack(found->first, watch->generation) == id) watch->ready(events[i].events);
  }
  run_timers();
}

std::chrono::milliseconds EventLoop::until_next_timer(std::chrono::milliseconds limit) const {
  if (timers_.empty()) return limit;
  // Rounded up: waking early would only turn the loop once more.
  const auto wait =
      std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first.first - Clock::now());
  return std::clamp(wait, std::chrono::milliseconds(0), limit);
}

void EventLoop::run_timers() {
  const auto now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto due = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    due();
  }
}

}  // namespace lockstep
