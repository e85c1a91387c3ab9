#include <fstream>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/group_impl.h"
#include "comm/ordered_reduction.h"
#include "comm/rank_layout.h"
#include "lockstep/error.h"
#include "lockstep/world.h"
#include "tests/comm/collective_matrix.h"
#include "tests/support/ranks.h"

// Ranks that believe to be on several machines. collectives_test.cpp runs another time on them, and
// tests/programs/hybrid_link_test.py has real links between them.
using namespace lockstep;
using namespace std::chrono_literals;
using lockstep::testing::equal_bits;
using lockstep::testing::expect_every_collective;
using lockstep::testing::kill_this_process;
using lockstep::testing::of_all_ranks;
using lockstep::testing::reduced;
using lockstep::testing::tensor_of;
using lockstep::testing::this_rank;

namespace {

using Tensors = std::vector<at::Tensor>;

World hybrid_world() {
  World world = init({.backend = "hybrid"});
  EXPECT_EQ(world.group().backend(), "hybrid");
  return world;
}

struct Killable {
  const char* name;
  std::function<void(ProcessGroup&)> call;
};

std::vector<Killable> collectives_to_die_in() {
  constexpr std::int64_t n = 400'000;
  return {
      {"all_reduce", [](ProcessGroup& g) { g.all_reduce(torch::ones({n})); }},
      {"reduce", [](ProcessGroup& g) { g.reduce(torch::ones({n})); }},
      {"broadcast", [](ProcessGroup& g) { g.broadcast(torch::ones({n}), {.root = 2}); }},
      {"all_gather_into_tensor",
       [](ProcessGroup& g) { g.all_gather_into_tensor(torch::ones({4 * n}), torch::ones({n})); }},
      {"reduce_scatter_tensor",
       [](ProcessGroup& g) { g.reduce_scatter_tensor(torch::ones({n}), torch::ones({4 * n})); }},
      {"barrier", [](ProcessGroup& g) { g.barrier(); }},
      {"all_to_all_single",
       [](ProcessGroup& g) { g.all_to_all_single(torch::ones({4 * n}), torch::ones({4 * n})); }},
  };
}

bool has_memory_of_a_team() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:lockstep") != std::string::npos) return true;
  }
  return false;
}

// The victim dies in the middle of one of many calls; everybody else is let go at once.
void expect_release(int victim) {
  const auto collectives = collectives_to_die_in();
  {
    World world = init({.backend = "hybrid", .timeout = 60s});
    const Killable& collective = collectives[std::atoi(std::getenv("LOCKSTEP_TEST_COLLECTIVE"))];
    collective.call(world.group());
    world.barrier();
    if (this_rank() == victim) {
      std::thread([] {
        std::this_thread::sleep_for(20ms);
        kill_this_process();
      }).detach();
    }
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(while (true) collective.call(world.group()), PeerLost) << collective.name;
    EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
    EXPECT_THROW(world.group().barrier(), PeerLost) << collective.name;
    EXPECT_TRUE(has_memory_of_a_team());
  }
  EXPECT_FALSE(has_memory_of_a_team());
}

}  // namespace

TEST(RankLayout, ranks_of_a_machine_follow_each_other) {
  const auto layout = RankLayout::of({"a", "a", "b", "b", "b", "c"});
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->machines, (std::vector<std::vector<int>>{{0, 1}, {2, 3, 4}, {5}}));
  EXPECT_EQ(layout->leader(1), 2);
  EXPECT_EQ(layout->place(4), 2);
  EXPECT_FALSE(layout->all_alone());
  EXPECT_TRUE(RankLayout::of({"a", "b"})->all_alone());
  EXPECT_FALSE(RankLayout::of({"a", "b", "a"}));
}

RANKS_TEST_WITH(Hybrid, two_machines_of_two_ranks, {.count = 4, .machines = 2}) {
  World world = hybrid_world();
  expect_every_collective(world);
}
RANKS_TEST_WITH(Hybrid, machines_of_two_ranks_and_of_one, {.count = 3, .machines = 2}) {
  World world = hybrid_world();
  expect_every_collective(world);
}
RANKS_TEST_WITH(Hybrid, two_machines_of_five_ranks, {.count = 5, .machines = 2}) {
  World world = hybrid_world();
  expect_every_collective(world);
}
RANKS_TEST_WITH(Hybrid, three_machines_of_five_ranks, {.count = 5, .machines = 3}) {
  World world = hybrid_world();
  expect_every_collective(world);
}

RANKS_TEST_WITH(Hybrid, ordered_reductions_have_the_same_bits, {.count = 5, .machines = 2}) {
  World world = init({.backend = "gloo"});
  OrderedReduction reduction(world.group().impl());
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t count : {1, 4096, 4097, 300'001}) {
      for (const auto urgency :
           {OrderedReduction::Urgency::wait_now, OrderedReduction::Urgency::overlap}) {
        const auto future = reduction.mean(tensor_of(world.rank(), count, type), urgency);
        future->waitAndThrow();
        EXPECT_TRUE(equal_bits(future->value().toTensor(),
                               reduced(of_all_ranks(5, count, type), ReduceOperator::sum, 5)))
            << type << " x " << count;
      }
    }
  }
  EXPECT_TRUE(world.group().impl()->shm->in_use());
}

RANKS_TEST_WITH(Hybrid, is_chosen_where_ranks_share_machines, {.count = 4, .machines = 2}) {
  World world = init();
  EXPECT_EQ(world.group().backend(), "hybrid");
  const ProcessGroup here = world.new_group({.ranks = {0, 1}});
  const ProcessGroup apart = world.new_group({.ranks = {1, 2}});
  const ProcessGroup three = world.new_group({.ranks = {1, 2, 3}, .backend = "shm"});
  const auto backend_of = [](const ProcessGroup& group, const char* otherwise) {
    return group.is_member() ? group.backend() : otherwise;
  };
  EXPECT_EQ(backend_of(here, "shm"), "shm");
  EXPECT_EQ(backend_of(apart, "gloo"), "gloo");
  EXPECT_EQ(backend_of(three, "hybrid"), "hybrid");
  world.barrier();
}

RANKS_TEST_WITH(Hybrid, operations_in_flight_keep_their_order, {.count = 4, .machines = 2}) {
  World world = hybrid_world();
  auto& group = world.group();
  Tensors tensors;
  std::vector<Work> works;
  for (int i = 0; i < 30; ++i) {
    const bool async_op = i % 4 != 3;  // now and then one that is waited for at once
    tensors.push_back(torch::full({i % 5 == 0 ? 100'000 : 7}, i + world.rank(), at::kDouble));
    works.push_back(i % 2 == 0
                        ? group.all_reduce(tensors.back(), {.async_op = async_op})
                        : group.broadcast(tensors.back(), {.root = i % 4, .async_op = async_op}));
  }
  for (int i = 29; i >= 0; --i) {
    works[i].wait();
    const double expected = i % 2 == 0 ? 4.0 * i + 6 : i + i % 4;
    EXPECT_TRUE((tensors[i] == expected).all().item<bool>()) << i;
  }
}

RANKS_TEST_WITH(Hybrid, abort_wakes_ranks_of_all_machines, {.count = 4, .machines = 2}) {
  World world = hybrid_world();
  world.barrier();
  // Without it the first machine never gets as far as the second, whose leader waits for that one.
  if (world.rank() == 1) {
    world.store().wait({"over0", "over2", "over3"}, 20s);
    return;
  }
  const at::Tensor tensor = torch::ones({300'000});
  if (world.rank() == 0) {
    Work work = world.group().all_reduce(tensor, {.async_op = true});
    world.abort();
    EXPECT_THROW(work.wait(), Aborted);
  } else {
    EXPECT_THROW(world.group().all_reduce(tensor), PeerLost);
  }
  world.store().set(concat("over", world.rank()), "1");
}

RANKS_TEST_WITH(Hybrid, a_rank_that_shares_no_memory_decides_for_all, {.count = 4, .machines = 2}) {
  if (this_rank() == 3) setenv("LOCKSTEP_SHM", "0", 1);
  unsetenv("LOCKSTEP_QUIET");
  ::testing::internal::CaptureStderr();
  World world = init({.backend = "hybrid"});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(world.group().backend(), "gloo");
  EXPECT_EQ(said, this_rank() == 0 ? "lockstep: group 0: its collectives go over TCP and not "
                                     "through shared memory: rank 3: LOCKSTEP_SHM is 0\n"
                                   : "");
  at::Tensor tensor = torch::ones({10});
  world.group().all_reduce(tensor);
  EXPECT_EQ(tensor[9].item<float>(), 4);
}

RANKS_TEST_WITH(Hybrid, machines_that_call_different_things_are_told,
                {.count = 4, .machines = 2, .timeout_seconds = 120}) {
  const std::vector<std::function<void(ProcessGroup&, bool)>> mistakes{
      [](ProcessGroup& group, bool first) {  // lengths
        group.all_reduce(torch::ones({first ? 10 : 300'000}));
      },
      [](ProcessGroup& group, bool first) {  // types of one size
        group.all_reduce(torch::ones({100'000}, first ? at::kFloat : at::kInt));
      },
      [](ProcessGroup& group, bool first) {  // kinds
        if (first) {
          group.barrier();
        } else {
          group.broadcast(torch::ones({100'000}));
        }
      },
  };
  World world = init({.timeout = 60s});
  std::vector<ProcessGroup> groups;
  for (std::size_t i = 0; i < mistakes.size(); ++i) {
    groups.push_back(world.new_group({.ranks = {0, 1, 2, 3}}));
  }
  for (std::size_t i = 0; i < mistakes.size(); ++i) {
    std::string said;
    try {
      mistakes[i](groups[i], world.rank() < 2);
    } catch (const std::exception& error) {
      said = error.what();
    }
    EXPECT_NE(said, "") << i;
    const bool leads = world.rank() % 2 == 0;
    EXPECT_TRUE(!leads || said.find("but rank") != std::string::npos ||
                said.find("lost the connection") != std::string::npos)
        << said;
    // One of the leaders may have heard the end of the connection first.
    const auto all = world.group().all_gather_string(said);
    EXPECT_TRUE(all[0].find("but rank 2") != std::string::npos ||
                all[2].find("but rank 0") != std::string::npos)
        << all[0] << " / " << all[2];
  }
}

// The victim is a leader in one half of them.
#define HYBRID_DEATH_TEST(name, number, victim)                            \
  RANKS_TEST_WITH(HybridDeath, name,                                       \
                  {.count = 4,                                             \
                   .killed = {victim},                                     \
                   .environment = {{"LOCKSTEP_TEST_COLLECTIVE", #number}}, \
                   .machines = 2}) {                                       \
    expect_release(victim);                                                \
  }
HYBRID_DEATH_TEST(in_all_reduce, 0, 3)
HYBRID_DEATH_TEST(in_all_reduce_of_a_leader, 0, 2)
HYBRID_DEATH_TEST(in_reduce, 1, 1)
HYBRID_DEATH_TEST(in_broadcast, 2, 2)
HYBRID_DEATH_TEST(in_all_gather, 3, 3)
HYBRID_DEATH_TEST(in_reduce_scatter, 4, 0)
HYBRID_DEATH_TEST(in_barrier, 5, 1)
HYBRID_DEATH_TEST(in_all_to_all, 6, 3)
