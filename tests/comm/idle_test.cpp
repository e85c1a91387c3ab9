#include <chrono>
#include <ctime>
#include <functional>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/group_impl.h"
#include "comm/ordered_reduction.h"
#include "lockstep/world.h"
#include "tests/support/ranks.h"

// A rank that waits for others leaves its core to them, in whatever it waits.
using namespace lockstep;
using namespace std::chrono_literals;

namespace {

constexpr auto kAbsence = 1s;
constexpr double kMost = 0.05;  // of a core

// Of all threads of this process.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The last rank is late: a while after the others have come, who wait for it.
void expect_an_idle_wait(World& world, const char* what, const std::function<void()>& call) {
  call();  // connections and buffers are made
  world.barrier();
  const std::string here = std::string(what) + " of rank ";
  const int last = world.world_size() - 1;
  if (world.rank() == last) {
    for (int rank = 0; rank < last; ++rank) world.store().get(here + std::to_string(rank));
    std::this_thread::sleep_for(kAbsence);
    return call();
  }
  const auto start = std::chrono::steady_clock::now();
  const double before = processor_seconds();
  world.store().set(here + std::to_string(world.rank()), "");
  call();
  const double used = processor_seconds() - before;
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  EXPECT_GE(waited, kAbsence) << what;
  EXPECT_LT(used, kMost * waited.count()) << what;
}

void expect_idle_waits(const char* backend) {
  World world = init({.backend = backend});
  EXPECT_EQ(world.group().backend(), backend);
  auto& group = world.group();
  const at::Tensor small = torch::ones({4}), large = torch::ones({500'000});
  expect_an_idle_wait(world, "all_reduce", [&] { group.all_reduce(small); });
  expect_an_idle_wait(world, "all_reduce of much, waited for later",
                      [&] { group.all_reduce(large, {.async_op = true}).wait(); });
  expect_an_idle_wait(world, "barrier", [&] { group.barrier(); });
  OrderedReduction reduction(group.impl());
  expect_an_idle_wait(world, "ordered mean", [&] {
    reduction.mean(small, OrderedReduction::Urgency::wait_now)->waitAndThrow();
  });
  expect_an_idle_wait(world, "ordered mean of much, beside backward", [&] {
    reduction.mean(large, OrderedReduction::Urgency::overlap)->waitAndThrow();
  });
  expect_an_idle_wait(world, "recv", [&] {
    const int last = world.world_size() - 1;
    if (world.rank() == last) {
      for (int peer = 0; peer < last; ++peer) group.send(large, {.peer = peer});
    } else {
      group.recv(large, {.peer = last});
    }
  });
}

}  // namespace

RANKS_TEST(Idle, in_shared_memory, 2) {
  expect_idle_waits("shm");
}
// Of the first machine one rank waits for the other machine, and one for the first.
RANKS_TEST_WITH(Idle, between_machines, {.count = 4, .machines = 2}) {
  expect_idle_waits("hybrid");
}
RANKS_TEST(Idle, over_tcp, 2) {
  expect_idle_waits("gloo");
}
