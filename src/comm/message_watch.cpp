#include "comm/message_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// Gloo's thread sees the end of a connection at the same time as ours, unless it gets no processor.
constexpr auto kFirstQuestion = 5ms;
constexpr auto kLastQuestion = 5s;
// To ask is to write, and Gloo gives up a connection on which that fails, with what it has not
// read: a last message could be among it.
constexpr auto kLongestReading = 1s;

bool has_unread_bytes(int descriptor) {
  int bytes = 0;
  return ioctl(descriptor, FIONREAD, &bytes) == 0 && bytes > 0;
}

}  // namespace

MessageWatch::MessageWatch(std::shared_ptr<const SocketHandles> sockets, IsLost is_lost)
    : sockets_(std::move(sockets)),
      is_lost_(std::move(is_lost)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void MessageWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

void MessageWatch::wake() {
  const std::uint64_t once = 1;
  [[maybe_unused]] const auto written = write(wake_.get(), &once, sizeof(once));
}

bool MessageWatch::wait(c10d::Work& work, int connection, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!thread_.joinable() && !stop_) thread_ = std::thread([this] { run(); });
  const auto waiter =
      waiters_.insert(waiters_.end(), Waiter{.work = work, .connection = connection});
  if (ended_at_) wake();
  lock.unlock();

  const auto leave = [&] {
    lock.lock();
    const bool let_go = waiter->let_go;
    waiters_.erase(waiter);
    lock.unlock();
    return let_go;
  };
  bool ended = false;
  try {
    ended = work.wait(timeout);
  } catch (...) {
    leave();
    throw;
  }
  if (!leave() || ended) return ended;
  // It may have come in the moment in which it was given up.
  try {
    if (work.wait(1ms)) return true;
  } catch (const std::exception&) {
  }
  throw std::runtime_error("Connection closed by peer in the middle of a message");
}

void MessageWatch::run() {
  std::vector<pollfd> polled{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const int descriptor : sockets_->descriptors()) {
    polled.push_back({.fd = descriptor, .events = POLLRDHUP, .revents = 0});
  }
  std::optional<Clock::time_point> ask_again;
  while (true) {
    int limit = -1;
    if (ask_again) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*ask_again - Clock::now());
      limit = static_cast<int>(std::max<std::int64_t>(0, left.count()));
    }
    poll(polled.data(), polled.size(), limit);
    std::uint64_t times = 0;
    [[maybe_unused]] const auto taken = read(wake_.get(), &times, sizeof(times));

    const std::lock_guard lock(mutex_);
    if (stop_) return;
    for (std::size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      ended_.push_back(polled[i].fd);
      polled[i] = {.fd = -1, .events = 0, .revents = 0};  // it has nothing more to tell
      ended_at_ = Clock::now();
      ask_at_.clear();
    }
    ask_again = ask();
  }
}

std::optional<MessageWatch::Clock::time_point> MessageWatch::ask() {
  if (!ended_at_ || waiters_.empty()) return std::nullopt;
  if (Clock::now() < *ended_at_ + kLongestReading &&
      std::ranges::any_of(ended_, has_unread_bytes)) {
    return Clock::now() + kFirstQuestion;
  }
  std::optional<Clock::time_point> again;
  for (Waiter& waiter : waiters_) {
    auto& at = ask_at_.try_emplace(waiter.connection, *ended_at_ + kFirstQuestion).first->second;
    const auto now = Clock::now();
    if (at <= now && !lost_.contains(waiter.connection)) {
      if (is_lost_(waiter.connection)) lost_.insert(waiter.connection);
      const auto passed = now - *ended_at_;
      at = passed < kLastQuestion ? now + passed : Clock::time_point::max();
    }
    if (lost_.contains(waiter.connection)) {
      if (!waiter.let_go) waiter.work.abort();
      waiter.let_go = true;
    } else if (at != Clock::time_point::max()) {
      again = again ? std::min(*again, at) : at;
    }
  }
  return again;
}

}  // namespace lockstep
