#include "rpc/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "lockstep/rpc_error.h"

namespace lockstep::rpc {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

std::int64_t to_number(EventLoop::Time time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

// True if the value was larger.
bool lower(std::atomic<std::int64_t>& value, std::int64_t to) {
  std::int64_t current = value.load();
  while (to < current) {
    if (value.compare_exchange_weak(current, to)) return true;
  }
  return false;
}

}  // namespace

EventLoop::EventLoop()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      wake_at_(kNever) {
  if (!epoll_ || !event_) throw_errno("rpc: epoll");
  epoll_event interest{.events = EPOLLIN, .data = {.u64 = 0}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &interest) != 0) {
    throw_errno("rpc: epoll");
  }
  thread_ = std::thread([this] { run(); });
}

EventLoop::~EventLoop() {
  stop();
}

std::uint64_t EventLoop::add(int descriptor, std::uint32_t events,
                             std::shared_ptr<Handler> handler) {
  const std::lock_guard lock(mutex_);
  if (stopping_) throw ShutDown("rpc: this agent was shut down", {});  // nobody would let go of it
  const std::uint64_t number = next_number_++;
  epoll_event interest{.events = events, .data = {.u64 = number}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &interest) != 0) {
    throw_errno("rpc: epoll");
  }
  handlers_.emplace(number, std::move(handler));
  return number;
}

void EventLoop::change(std::uint64_t number, int descriptor, std::uint32_t events) {
  epoll_event interest{.events = events, .data = {.u64 = number}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, descriptor, &interest);
}

void EventLoop::remove(std::uint64_t number, int descriptor) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
  std::shared_ptr<Handler> handler;  // let go of outside the lock
  const std::lock_guard lock(mutex_);
  if (const auto found = handlers_.find(number); found != handlers_.end()) {
    handler = std::move(found->second);
    handlers_.erase(found);
  }
}

void EventLoop::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof(one));
}

void EventLoop::wake_by(Time time) {
  if (time != Time::max() && lower(wake_at_, to_number(time))) wake();
}

void EventLoop::check_times(Time now) {
  wake_at_ = kNever;  // before they are asked, so that what is added meanwhile is not lost
  std::vector<std::shared_ptr<Handler>> handlers;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, handler] : handlers_) handlers.push_back(handler);
  }
  Time next = Time::max();
  for (const auto& handler : handlers) next = std::min(next, handler->on_time(now));
  if (next != Time::max()) lower(wake_at_, to_number(next));
}

void EventLoop::run() {
  std::array<epoll_event, 64> events;
  while (!stopping_) {
    int wait = -1;
    if (const std::int64_t wake_at = wake_at_; wake_at != kNever) {
      const std::int64_t left = wake_at - to_number(std::chrono::steady_clock::now());
      // Rounded up: a wait that ends too early would be one of many.
      wait = static_cast<int>(std::clamp<std::int64_t>((left + 999'999) / 1'000'000, 0, 1 << 30));
    }
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), wait);
    for (int index = 0; index < count; ++index) {
      const epoll_event& event = events[static_cast<std::size_t>(index)];
      if (event.data.u64 == 0) {
        std::uint64_t ignored = 0;
        [[maybe_unused]] const auto got = ::read(event_.get(), &ignored, sizeof(ignored));
        continue;
      }
      std::shared_ptr<Handler> handler;
      {
        const std::lock_guard lock(mutex_);
        const auto found = handlers_.find(event.data.u64);
        if (found != handlers_.end()) handler = found->second;
      }
      if (handler) handler->on_events(event.events);
    }
    const Time now = std::chrono::steady_clock::now();
    if (to_number(now) >= wake_at_) check_times(now);
  }
}

void EventLoop::stop() {
  stopping_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
  std::map<std::uint64_t, std::shared_ptr<Handler>> handlers;
  const std::lock_guard lock(mutex_);
  handlers.swap(handlers_);
}

}  // namespace lockstep::rpc
