#include "launch/event_loop.h"

#include <sys/epoll.h>
#include <unistd.h>
#include <string>

#include <gtest/gtest.h>

using lockstep::EventLoop;
using lockstep::UniqueFd;
using std::chrono::milliseconds;

namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    in = UniqueFd(ends[0]);
    out = UniqueFd(ends[1]);
  }
  void put() const { ASSERT_EQ(::write(out.get(), "x", 1), 1); }
  UniqueFd in, out;
};

}  // namespace

TEST(EventLoop, timers_run_in_order_of_their_time) {
  EventLoop loop;
  std::string order;
  const auto now = EventLoop::Clock::now();
  loop.at(now + milliseconds(2), [&] { order += 'b'; });
  loop.at(now + milliseconds(1), [&] { order += 'a'; });
  loop.at(now + milliseconds(3), [&] { loop.stop(); });
  loop.run();
  EXPECT_EQ(order, "ab");
}

TEST(EventLoop, a_cancelled_timer_does_not_run) {
  EventLoop loop;
  const auto timer = loop.after(milliseconds(1), [] { FAIL(); });
  loop.cancel(timer);
  loop.after(milliseconds(2), [&] { loop.stop(); });
  loop.run();
}

TEST(EventLoop, a_callback_may_drop_another_that_is_ready_in_the_same_round) {
  EventLoop loop;
  Pipe one, two;
  int calls = 0;
  const auto drop_both = [&](std::uint32_t) {
    ++calls;
    loop.unwatch(one.in.get());
    loop.unwatch(two.in.get());
    loop.stop();
  };
  loop.watch(one.in.get(), EPOLLIN, drop_both);
  loop.watch(two.in.get(), EPOLLIN, drop_both);
  one.put();
  two.put();
  loop.run();
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, a_descriptor_reused_within_a_round_does_not_get_the_old_events) {
  EventLoop loop;
  Pipe one, two, fresh;
  one.put();
  two.put();
  const auto replace = [&](Pipe& victim) {
    const int number = victim.in.get();
    loop.unwatch(number);
    ASSERT_EQ(::dup2(fresh.in.get(), number), number);  // closes what had the number
    loop.watch(number, EPOLLIN, [](std::uint32_t) { FAIL() << "nothing was written to it"; });
    loop.after(milliseconds(5), [&loop] { loop.stop(); });
  };
  loop.watch(one.in.get(), EPOLLIN, [&](std::uint32_t) {
    loop.unwatch(one.in.get());
    replace(two);
  });
  loop.watch(two.in.get(), EPOLLIN, [&](std::uint32_t) {
    loop.unwatch(two.in.get());
    replace(one);
  });
  loop.run();
}

TEST(EventLoop, waits_no_longer_than_it_is_told) {
  EventLoop loop;
  const auto start = EventLoop::Clock::now();
  loop.run_once(milliseconds(5));
  EXPECT_GE(EventLoop::Clock::now() - start, milliseconds(4));
}
