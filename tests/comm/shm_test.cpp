#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/group_impl.h"
#include "comm/ordered_reduction.h"
#include "lockstep/error.h"
#include "lockstep/world.h"
#include "shm/futex.h"
#include "shm/shared_segment.h"
#include "tests/support/ranks.h"
#include "tests/support/survivors.h"

using namespace lockstep;
using namespace std::chrono_literals;
using lockstep::testing::await_survivors;
using lockstep::testing::kill_this_process;
using lockstep::testing::this_rank;

namespace {

using Urgency = OrderedReduction::Urgency;

at::Tensor mean_of(OrderedReduction& reduction, const at::Tensor& tensor,
                   Urgency urgency = Urgency::wait_now) {
  const auto future = reduction.mean(tensor, urgency);
  future->waitAndThrow();
  return future->value().toTensor();
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

// A group over all ranks whose reductions go over TCP.
ProcessGroup tcp_group(World& world) {
  std::vector<int> everyone;
  for (int rank = 0; rank < world.world_size(); ++rank) everyone.push_back(rank);
  ProcessGroup group = world.new_group({.ranks = everyone});
  setenv("LOCKSTEP_SHM", "0", 1);
  OrderedReduction reduction(group.impl());
  mean_of(reduction, torch::ones({1}));
  unsetenv("LOCKSTEP_SHM");
  return group;
}

void expect_the_bits_of_tcp() {
  World world = init();
  ProcessGroup tcp = tcp_group(world);
  OrderedReduction through_memory(world.group().impl()), over_tcp(tcp.impl());
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    // Around the sizes at which the exchange changes its ways: 16 KiB, and chunks of 128 KiB.
    for (const std::int64_t length : {0, 1, 3, 1000, 4096, 4097, 65'535, 65'537, 700'001}) {
      torch::manual_seed(10 * length + world.rank());
      const at::Tensor mine = torch::randn({length}).to(type);
      for (const auto urgency : {Urgency::wait_now, Urgency::overlap}) {
        const at::Tensor here = mean_of(through_memory, mine.clone(), urgency);
        const at::Tensor there = mean_of(over_tcp, mine.clone(), urgency);
        EXPECT_TRUE(same_bytes(here, there)) << type << " x " << length;
      }
    }
  }
  EXPECT_EQ(world.group().impl()->shm->in_use(), world.world_size() > 1);
  EXPECT_FALSE(tcp.impl()->shm->in_use());
}

bool maps_a_segment() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:lockstep") != std::string::npos) return true;
  }
  return false;
}

bool holds_a_descriptor() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.find("memfd:lockstep") != std::string::npos) return true;
  }
  return false;
}

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void expect_mean_over_tcp(World& world) {
  OrderedReduction reduction(world.group().impl());
  const at::Tensor mean = mean_of(reduction, torch::full({5000}, world.rank() + 1.0f));
  EXPECT_EQ(mean[4999].item<float>(), (world.world_size() + 1) / 2.0f);
  EXPECT_FALSE(world.group().impl()->shm->in_use());
}

}  // namespace

TEST(SharedCounter, is_compared_by_distance) {
  SharedCounter counter;
  EXPECT_TRUE(counter.reached(0u - 4));  // four before the first
  EXPECT_FALSE(counter.reached(1));
  counter.publish(std::numeric_limits<std::uint32_t>::max());
  EXPECT_FALSE(counter.reached(0));
  counter.publish(0);
  EXPECT_TRUE(counter.reached(std::numeric_limits<std::uint32_t>::max()));
}

TEST(SharedCounter, publishing_wakes_a_sleeper) {
  SharedCounter counter;
  std::thread publisher([&] {
    std::this_thread::sleep_for(20ms);
    counter.publish(1);
  });
  const auto start = std::chrono::steady_clock::now();
  while (!counter.reached(1)) counter.sleep(1, 10s);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  publisher.join();
}

TEST(SharedSegment, is_seen_through_a_second_mapping_and_has_no_name) {
  SharedSegment first = SharedSegment::create(8192);
  {
    const UniqueFd descriptor = first.take_descriptor();
    const SharedSegment second = SharedSegment::open(getpid(), descriptor.get(), 8192);
    first.data()[8191] = std::byte{7};
    EXPECT_EQ(second.data()[8191], std::byte{7});
    EXPECT_THROW(SharedSegment::open(getpid(), descriptor.get(), 4096), Error);
  }
  EXPECT_FALSE(holds_a_descriptor());
  EXPECT_THROW(SharedSegment::open(getpid(), 0, 8192), Error);
}

RANKS_TEST(Shm, one_rank_has_the_bits_of_tcp, 1) {
  expect_the_bits_of_tcp();
}
RANKS_TEST(Shm, two_ranks_have_the_bits_of_tcp, 2) {
  expect_the_bits_of_tcp();
}
RANKS_TEST(Shm, three_ranks_have_the_bits_of_tcp, 3) {
  expect_the_bits_of_tcp();
}
RANKS_TEST(Shm, five_ranks_have_the_bits_of_tcp, 5) {
  expect_the_bits_of_tcp();
}

RANKS_TEST(Shm, reductions_of_two_models_do_not_mix, 2) {
  World world = init();
  OrderedReduction one(world.group().impl()), two(world.group().impl());
  std::vector<OrderedReduction::FuturePtr> futures;
  for (int i = 0; i < 60; ++i) {
    const at::Tensor tensor = torch::full({i % 3 == 0 ? 200'000 : 10}, i + world.rank() * 2.0f);
    futures.push_back(
        (i % 2 ? one : two).mean(tensor, i % 5 ? Urgency::overlap : Urgency::wait_now));
  }
  for (int i = 0; i < 60; ++i) {
    futures[i]->waitAndThrow();
    const at::Tensor mean = futures[i]->value().toTensor();
    EXPECT_TRUE(torch::equal(mean, torch::full_like(mean, i + 1.0f))) << i;
  }
}

RANKS_TEST(Shm, a_type_that_cannot_be_added_leaves_the_group_usable, 2) {
  World world = init();
  OrderedReduction reduction(world.group().impl());
  for (int round = 0; round < 2; ++round) {
    EXPECT_THROW(mean_of(reduction, torch::ones({9}, at::kInt)), InvalidArgument);
    EXPECT_EQ(mean_of(reduction, torch::ones({9}))[8].item<float>(), 1);
  }
}

RANKS_TEST(Shm, tensors_of_different_lengths_are_an_error_on_every_rank, 2) {
  World world = init();
  OrderedReduction reduction(world.group().impl());
  try {
    mean_of(reduction, torch::ones({world.rank() == 0 ? 10 : 300'000}));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("same tensors in the same order"), std::string::npos)
        << error.what();
  }
}

RANKS_TEST_WITH(Shm, a_rank_killed_in_the_middle_is_named_at_once, {.count = 3, .killed = {1}}) {
  World world = init();
  OrderedReduction reduction(world.group().impl());
  const at::Tensor tensor = torch::ones({8 << 20});
  mean_of(reduction, tensor);
  if (world.rank() == 1) {
    std::thread([&] {
      std::this_thread::sleep_for(50ms);
      world.store().set("killed_at", std::to_string(seconds_of(CLOCK_MONOTONIC)));
      kill_this_process();
    }).detach();
  }
  try {
    while (true) mean_of(reduction, tensor);
  } catch (const PeerLost& lost) {
    const double now = seconds_of(CLOCK_MONOTONIC);
    EXPECT_EQ(lost.peers(), std::vector<int>{1}) << lost.what();
    EXPECT_EQ(lost.operation(), "all_reduce");
    // A few milliseconds when the machine has nothing else to do; the time-out is half an hour.
    EXPECT_LT(now - std::stod(world.store().get("killed_at")), 20.0);
  }
  EXPECT_THROW(mean_of(reduction, tensor), PeerLost);
  await_survivors(world, {1});
}

RANKS_TEST(Shm, abort_ends_a_wait_here_and_at_the_peers, 3) {
  World world = init();
  OrderedReduction reduction(world.group().impl());
  mean_of(reduction, torch::ones({4}));
  if (world.rank() == 2) {
    // Never joins: the others wait for it until rank 0 gives up.
    world.store().wait({"over0", "over1"}, 20s);
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  std::thread other([&] {
    if (world.rank() != 0) return;
    std::this_thread::sleep_for(100ms);
    world.abort();
  });
  if (world.rank() == 0) {
    EXPECT_THROW(mean_of(reduction, torch::ones({4})), Aborted);
  } else {
    EXPECT_THROW(mean_of(reduction, torch::ones({4})), PeerLost);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 15s);
  other.join();
  world.store().set(concat("over", world.rank()), "1");
}

RANKS_TEST(Shm, a_reduction_that_others_do_not_join_times_out, 2) {
  World world = init({.timeout = 1s});
  OrderedReduction reduction(world.group().impl());
  mean_of(reduction, torch::ones({4}));
  if (world.rank() == 0) {
    EXPECT_THROW(mean_of(reduction, torch::ones({4})), Timeout);
    world.store().set("seen", "1");
  } else {
    world.store().wait({"seen"}, 20s);
  }
}

RANKS_TEST(Shm, nothing_is_left_when_the_world_ends, 2) {
  {
    World world = init();
    OrderedReduction reduction(world.group().impl());
    mean_of(reduction, torch::ones({100'000}));
    EXPECT_TRUE(maps_a_segment());
    EXPECT_FALSE(holds_a_descriptor());  // all have opened it, nobody else can
  }
  EXPECT_FALSE(maps_a_segment());
}

RANKS_TEST(Shm, one_rank_that_does_not_want_it_decides_for_all, 3) {
  if (this_rank() == 1) setenv("LOCKSTEP_SHM", "0", 1);
  World world = init();
  unsetenv("LOCKSTEP_QUIET");
  ::testing::internal::CaptureStderr();
  expect_mean_over_tcp(world);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(said, this_rank() == 0
                      ? "lockstep: group 0: reductions go over TCP and not through shared "
                        "memory: rank 1: LOCKSTEP_SHM is 0\n"
                      : "");
}

RANKS_TEST(Shm, a_segment_that_does_not_fit_means_tcp, 2) {
  World world = init();
  const rlimit small{.rlim_cur = 1000, .rlim_max = RLIM_INFINITY};
  if (world.rank() == 0) {
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  expect_mean_over_tcp(world);
  const rlimit none{.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
}

RANKS_TEST_WITH(Shm, ranks_that_are_each_on_another_machine_use_tcp, {.count = 3, .machines = 3}) {
  World world = init();
  EXPECT_EQ(world.group().backend(), "gloo");
  expect_mean_over_tcp(world);
}
