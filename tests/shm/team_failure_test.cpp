#include <atomic>
#include <chrono>
#include <ctime>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "shm/team.h"
#include "tests/shm/team_of_threads.h"

using namespace lockstep;
using namespace std::chrono_literals;
using lockstep::testing::TeamOfThreads;

namespace {

const ReduceSpec kInts{.type = ElementType::int32};

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

bool says(const std::string& text, const char* what) {
  return text.find(what) != std::string::npos;
}

// Every call that can wait for others.
std::vector<std::function<void(ShmTeam&)>> every_call() {
  return {
      [](ShmTeam& team) { team.barrier(); },
      [](ShmTeam& team) {
        std::vector<std::int32_t> data(200'000, 1);
        team.all_reduce(data.data(), 200'000, kInts);
      },
      [](ShmTeam& team) {
        std::int32_t one = 1;
        team.all_reduce(&one, 1, kInts);
      },
      [](ShmTeam& team) {
        std::vector<std::int32_t> data(200'000, 1);
        team.reduce(data.data(), 200'000, kInts, 0);
      },
      [](ShmTeam& team) {
        std::vector<std::int32_t> data(400'000, 1);
        team.broadcast({data.data(), 1'600'000}, 0);
      },
      [](ShmTeam& team) {
        std::vector<std::int32_t> data(600'000, 1);
        team.all_gather({data.data(), 800'000},
                        {data.data(), data.data() + 200'000, data.data() + 400'000});
      },
      [](ShmTeam& team) {
        std::vector<std::int32_t> data(3, 1);
        team.reduce_scatter({data.data(), data.data() + 1, data.data() + 2}, data.data(), 1, kInts);
      },
      [](ShmTeam& team) {
        std::vector<std::int32_t> data(3, 1);
        const std::vector<ShmTeam::ConstBytes> inputs(3, {data.data(), 4});
        const std::vector<ShmTeam::Bytes> outputs(3, {data.data(), 4});
        team.all_to_all(inputs, outputs);
      }};
}

}  // namespace

TEST(TeamFailure, a_dead_peer_ends_every_call) {
  for (const auto& call : every_call()) {
    // Rank 2 never comes.
    std::atomic<bool> died = false;
    TeamOfThreads team(3, 60s, [&] { return died.load(); });
    std::thread killer([&] {
      std::this_thread::sleep_for(5ms);
      died = true;
    });
    const auto start = std::chrono::steady_clock::now();
    const auto errors = team.run([&](ShmTeam& rank) {
      if (rank.rank() != 2) call(rank);
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);  // and not the time-out
    killer.join();
    for (int rank = 0; rank < 2; ++rank) {
      // Who sees it first tells the other.
      const std::string& error = errors[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(says(error, "remote process exited") || says(error, "closed by peer")) << error;
    }
  }
}

TEST(TeamFailure, poison_ends_waits_now_and_later) {
  TeamOfThreads team(2, 60s);
  std::thread poisoner([&] {
    std::this_thread::sleep_for(5ms);
    team.rank(1).poison();
  });
  const auto errors = team.run([](ShmTeam& rank) {
    if (rank.rank() == 0) rank.barrier();
  });
  poisoner.join();
  EXPECT_TRUE(says(errors[0], "closed by peer")) << errors[0];
  EXPECT_THROW(team.rank(0).barrier(), std::runtime_error);
}

TEST(TeamFailure, what_was_handed_over_before_stays_valid) {
  TeamOfThreads team(2, 60s);
  std::int32_t value = 7;
  team.rank(0).broadcast({&value, sizeof(value)}, 0);
  team.rank(0).poison();
  std::int32_t received = 0;
  team.rank(1).broadcast({&received, sizeof(received)}, 0);
  EXPECT_EQ(received, 7);
}

TEST(TeamFailure, nobody_waits_longer_than_the_timeout) {
  TeamOfThreads team(2, 50ms);
  const auto errors = team.run([](ShmTeam& rank) {
    if (rank.rank() == 0) rank.barrier();
  });
  EXPECT_TRUE(says(errors[0], "Timed out after 50 ms")) << errors[0];
}

TEST(TeamFailure, calls_that_differ_are_told_on_every_rank) {
  const std::vector<std::function<void(ShmTeam&)>> mistakes{
      [](ShmTeam& rank) {  // lengths
        std::vector<std::int32_t> data(100'000);
        rank.all_reduce(data.data(), rank.rank() == 0 ? 10 : 100'000, kInts);
      },
      [](ShmTeam& rank) {  // types
        double value = 0;
        rank.all_reduce(&value, 1,
                        {.type = rank.rank() == 0 ? ElementType::float64 : ElementType::int64});
      },
      [](ShmTeam& rank) {  // nothing, and something
        float value = 0;
        rank.all_reduce(&value, rank.rank(), {.type = ElementType::float32});
      },
      [](ShmTeam& rank) {  // calls
        float value = 0;
        if (rank.rank() == 0) {
          rank.barrier();
        } else {
          rank.all_reduce(&value, 1, {.type = ElementType::float32});
        }
      },
  };
  for (const auto& mistake : mistakes) {
    TeamOfThreads team(2);
    for (const std::string& error : team.run(mistake)) {
      EXPECT_TRUE(says(error, "same tensors in the same order")) << error;
    }
  }
}

TEST(TeamFailure, parts_that_nobody_expects_are_told) {
  TeamOfThreads team(2);
  const auto errors = team.run([](ShmTeam& rank) {
    std::vector<std::byte> data(100);
    const std::vector<ShmTeam::ConstBytes> inputs(2, {data.data(), 10});
    const std::vector<ShmTeam::Bytes> outputs(2, {data.data(), rank.rank() == 0 ? 10U : 20U});
    rank.all_to_all(inputs, outputs);
  });
  EXPECT_TRUE(says(errors[1], "sends 10 bytes to rank 1, which expects 20")) << errors[1];
}

TEST(TeamFailure, a_long_wait_leaves_the_core_to_others) {
  TeamOfThreads team(2);
  double waited = 0;
  const auto errors = team.run([&](ShmTeam& rank) {
    if (rank.rank() == 1) std::this_thread::sleep_for(1s);
    const double before = thread_seconds();
    rank.barrier();
    if (rank.rank() == 0) waited = thread_seconds() - before;
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_LT(waited, 0.05);  // of a core
}
