#include "data/prefetcher.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::Prefetcher;
using lockstep::Timeout;
using namespace std::chrono_literals;

namespace {

Prefetcher::Result number(std::int64_t value) {
  return std::make_shared<std::int64_t>(value);
}

std::int64_t value_of(const Prefetcher::Result& result) {
  return *static_cast<std::int64_t*>(result.get());
}

std::vector<std::int64_t> drain(Prefetcher& prefetcher) {
  std::vector<std::int64_t> all;
  while (auto result = prefetcher.next()) all.push_back(value_of(result));
  return all;
}

// Counts how often each turn was done, and lets a test wait for a count.
class Log {
 public:
  void add(std::int64_t turn) {
    {
      const std::lock_guard lock(mutex_);
      if (turn >= std::ssize(runs_)) runs_.resize(turn + 1, 0);
      ++runs_[turn];
      ++total_;
      highest_ = std::max(highest_, turn);
    }
    changed_.notify_all();
  }
  bool wait_for_total(int total) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 30s, [&] { return total_ >= total; });
  }
  std::int64_t highest() {
    const std::lock_guard lock(mutex_);
    return highest_;
  }
  std::vector<int> runs() {
    const std::lock_guard lock(mutex_);
    return runs_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> runs_;
  int total_ = 0;
  std::int64_t highest_ = -1;
};

}  // namespace

TEST(Prefetcher, results_come_in_order_though_later_ones_are_done_first) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> done(20, false);
  Prefetcher prefetcher({.workers = 2, .ahead = 4});
  prefetcher.start(
      [&](std::int64_t turn, const std::stop_token&) {
        std::unique_lock lock(mutex);
        if (turn % 2 == 0) {
          EXPECT_TRUE(changed.wait_for(lock, 30s, [&] { return done[turn + 1]; }));
        }
        done[turn] = true;
        changed.notify_all();
        return number(turn);
      },
      0, 20);
  std::vector<std::int64_t> expected(20);
  for (int i = 0; i < 20; ++i) expected[i] = i;
  EXPECT_EQ(drain(prefetcher), expected);
}

TEST(Prefetcher, nothing_is_begun_further_ahead_than_said) {
  Log begun;
  Prefetcher prefetcher({.workers = 3, .ahead = 5});
  prefetcher.start(
      [&](std::int64_t turn, const std::stop_token&) {
        begun.add(turn);
        return number(turn);
      },
      0, 500);
  for (std::int64_t turn = 0; turn < 500; ++turn) {
    ASSERT_EQ(value_of(prefetcher.next()), turn);
    ASSERT_LE(begun.highest(), turn + 5);
  }
  EXPECT_EQ(prefetcher.next(), nullptr);
  EXPECT_EQ(prefetcher.next(), nullptr);
}

TEST(Prefetcher, without_workers_a_turn_is_done_when_it_is_taken) {
  Log begun;
  const std::thread::id caller = std::this_thread::get_id();
  Prefetcher prefetcher({});
  prefetcher.start(
      [&](std::int64_t turn, const std::stop_token&) {
        EXPECT_EQ(std::this_thread::get_id(), caller);
        begun.add(turn);
        return number(turn);
      },
      2, 4);
  EXPECT_EQ(begun.highest(), -1);
  EXPECT_EQ(value_of(prefetcher.next()), 2);
  EXPECT_EQ(begun.highest(), 2);
  EXPECT_EQ(drain(prefetcher), (std::vector<std::int64_t>{3}));
}

TEST(Prefetcher, an_error_is_thrown_at_its_turn_and_the_next_turn_follows) {
  for (const int workers : {0, 1, 3}) {
    Prefetcher prefetcher({.workers = workers, .ahead = 6});
    prefetcher.start(
        [](std::int64_t turn, const std::stop_token&) {
          if (turn == 2) throw std::runtime_error("two");
          return number(turn);
        },
        0, 5);
    EXPECT_EQ(value_of(prefetcher.next()), 0);
    EXPECT_EQ(value_of(prefetcher.next()), 1);
    EXPECT_THROW(prefetcher.next(), std::runtime_error);
    EXPECT_EQ(drain(prefetcher), (std::vector<std::int64_t>{3, 4}));
  }
}

TEST(Prefetcher, the_sequence_ends_before_the_first_turn_without_a_result) {
  for (const int workers : {0, 1, 3}) {
    Prefetcher prefetcher({.workers = workers, .ahead = 6});
    prefetcher.start(
        [](std::int64_t turn, const std::stop_token&) {
          return turn == 4 || turn == 6 ? nullptr : number(turn);
        },
        0, 1000);
    EXPECT_EQ(drain(prefetcher), (std::vector<std::int64_t>{0, 1, 2, 3}));
    EXPECT_EQ(prefetcher.next(), nullptr);
  }
}

TEST(Prefetcher, going_back_keeps_what_was_done_ahead) {
  Log log;
  Prefetcher prefetcher({.workers = 1, .ahead = 4});
  prefetcher.start(
      [&](std::int64_t turn, const std::stop_token&) {
        log.add(turn);
        return number(turn);
      },
      0, 5);
  ASSERT_TRUE(log.wait_for_total(4));
  EXPECT_EQ(value_of(prefetcher.next()), 0);
  prefetcher.seek(0);
  EXPECT_EQ(drain(prefetcher), (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(log.runs(), (std::vector<int>{2, 1, 1, 1, 1}));
}

TEST(Prefetcher, going_forward_leaves_turns_out) {
  for (const int workers : {0, 1, 3}) {
    Prefetcher prefetcher({.workers = workers, .ahead = 4});
    prefetcher.start([](std::int64_t turn, const std::stop_token&) { return number(turn); }, 0, 50);
    EXPECT_EQ(value_of(prefetcher.next()), 0);
    prefetcher.seek(47);
    EXPECT_EQ(drain(prefetcher), (std::vector<std::int64_t>{47, 48, 49}));
    prefetcher.seek(48);
    EXPECT_EQ(drain(prefetcher), (std::vector<std::int64_t>{48, 49}));
    prefetcher.seek(90);
    EXPECT_EQ(prefetcher.next(), nullptr);
  }
}

TEST(Prefetcher, a_new_sequence_waits_for_what_is_under_way_and_forgets_it) {
  std::atomic<int> under_way = 0;
  std::atomic<bool> first_begun = false;
  Prefetcher prefetcher({.workers = 3, .ahead = 6});
  prefetcher.start(
      [&](std::int64_t turn, const std::stop_token& stop) {
        ++under_way;
        first_begun = true;
        while (!stop.stop_requested()) std::this_thread::yield();
        --under_way;
        return number(turn + 1000);
      },
      0, 50);
  while (!first_begun) std::this_thread::yield();
  prefetcher.start(
      [&](std::int64_t turn, const std::stop_token&) {
        EXPECT_EQ(under_way, 0);
        return number(turn);
      },
      7, 10);
  EXPECT_EQ(drain(prefetcher), (std::vector<std::int64_t>{7, 8, 9}));
}

TEST(Prefetcher, can_be_destroyed_while_work_waits) {
  std::atomic<bool> begun = false;
  {
    Prefetcher prefetcher({.workers = 2, .ahead = 4});
    prefetcher.start(
        [&](std::int64_t, const std::stop_token& stop) -> Prefetcher::Result {
          begun = true;
          std::mutex mutex;
          std::condition_variable_any changed;
          std::unique_lock lock(mutex);
          changed.wait(lock, stop, [] { return false; });
          return nullptr;
        },
        0, 50);
    while (!begun) std::this_thread::yield();
  }
  const Prefetcher never_started({.workers = 2, .ahead = 4});
}

TEST(Prefetcher, a_turn_that_is_late_can_still_be_waited_for) {
  std::atomic<bool> go = false;
  Prefetcher prefetcher({.workers = 1, .ahead = 1, .timeout = 20ms});
  prefetcher.start(
      [&](std::int64_t turn, const std::stop_token&) {
        while (!go) std::this_thread::yield();
        return number(turn);
      },
      3, 4);
  EXPECT_THROW(prefetcher.next(), Timeout);
  EXPECT_EQ(prefetcher.cursor(), 3);
  go = true;
  Prefetcher::Result result;
  while (!result) {
    try {
      result = prefetcher.next();
    } catch (const Timeout&) {
    }
  }
  EXPECT_EQ(value_of(result), 3);
}

TEST(Prefetcher, a_worker_that_cannot_start_fails_every_turn) {
  Prefetcher prefetcher({.workers = 2, .ahead = 2, .thread_start = [](int worker) {
                           if (worker == 1) throw std::runtime_error("no device");
                         }});
  prefetcher.start(
      [](std::int64_t turn, const std::stop_token& stop) {
        while (!stop.stop_requested()) std::this_thread::yield();
        return number(turn);
      },
      0, 10);
  EXPECT_THROW(prefetcher.next(), std::runtime_error);
  EXPECT_THROW(prefetcher.next(), std::runtime_error);
}

TEST(Prefetcher, any_walk_through_a_sequence_gives_each_turn_its_own_result) {
  std::mt19937 draw(7);
  Prefetcher prefetcher({.workers = 3, .ahead = 5});
  for (int sequence = 0; sequence < 30; ++sequence) {
    const std::int64_t offset = sequence * 10'000;
    const std::int64_t end = 1 + draw() % 60;
    prefetcher.start(
        [offset](std::int64_t turn, const std::stop_token&) {
          for (int i = 0; i < turn % 3; ++i) std::this_thread::yield();
          return number(offset + turn);
        },
        0, end);
    std::int64_t turn = 0;
    for (int move = 0; move < 100; ++move) {
      if (draw() % 8 == 0) {
        turn = draw() % (end + 1);
        prefetcher.seek(turn);
      }
      const Prefetcher::Result result = prefetcher.next();
      if (turn == end) {
        ASSERT_EQ(result, nullptr);
      } else {
        ASSERT_EQ(value_of(result), offset + turn++);
      }
    }
  }
}
