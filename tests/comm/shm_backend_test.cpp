#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "comm/group_impl.h"
#include "lockstep/c10d.h"
#include "lockstep/error.h"
#include "lockstep/world.h"
#include "tests/support/ranks.h"
#include "tests/support/survivors.h"

// tests/shm has every type, operator and size; here it is about tensors, Works and process groups.
// collectives_test.cpp and failure_test.cpp run a second time on this backend.
using namespace lockstep;
using namespace std::chrono_literals;
using lockstep::testing::await_survivors;
using lockstep::testing::kill_this_process;
using lockstep::testing::this_rank;

namespace {

World shm_world() {
  World world = init({.backend = "shm"});
  EXPECT_EQ(world.group().backend(), "shm");
  return world;
}

at::Tensor values(int rank, std::int64_t count, at::ScalarType type) {
  torch::manual_seed(100 * count + rank);
  if (at::isFloatingType(type)) return torch::randn({count}).to(type);
  return torch::randint(1, 100, {count}, at::kLong).to(type);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.nbytes() == b.nbytes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

bool has_segments() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:lockstep") != std::string::npos) return true;
  }
  return false;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Collectives of a group of three by name; `count` elements.
struct Collective {
  const char* name;
  std::function<void(ProcessGroup&, std::int64_t)> call;
};

std::vector<Collective> every_collective() {
  return {
      {"all_reduce", [](ProcessGroup& g, std::int64_t n) { g.all_reduce(torch::ones({n})); }},
      {"reduce", [](ProcessGroup& g, std::int64_t n) { g.reduce(torch::ones({n})); }},
      {"broadcast",
       [](ProcessGroup& g, std::int64_t n) { g.broadcast(torch::ones({n}), {.root = 2}); }},
      {"all_gather_into_tensor",
       [](ProcessGroup& g, std::int64_t n) {
         g.all_gather_into_tensor(torch::ones({3 * n}), torch::ones({n}));
       }},
      {"scatter",
       [](ProcessGroup& g, std::int64_t n) {
         std::vector<at::Tensor> parts;
         if (g.rank() == 2) parts.assign(3, torch::ones({n}));
         g.scatter(torch::ones({n}), parts, {.root = 2});
       }},
      {"reduce_scatter_tensor",
       [](ProcessGroup& g, std::int64_t n) {
         g.reduce_scatter_tensor(torch::ones({n}), torch::ones({3 * n}));
       }},
      {"all_to_all_single",
       [](ProcessGroup& g, std::int64_t n) {
         g.all_to_all_single(torch::ones({3 * n}), torch::ones({3 * n}));
       }},
      {"barrier", [](ProcessGroup& g, std::int64_t) { g.barrier(); }},
  };
}

// The victim dies somewhere in the middle of one of many calls.
void lose_rank(ProcessGroup& group, const Collective& collective, int victim) {
  collective.call(group, 1000);
  group.barrier();
  if (this_rank() == victim) {
    std::thread([] {
      std::this_thread::sleep_for(20ms);
      kill_this_process();
    }).detach();
  }
  try {
    while (true) collective.call(group, 400'000);
  } catch (const PeerLost& lost) {
    EXPECT_EQ(lost.peers(), std::vector<int>{victim}) << collective.name << ": " << lost.what();
  }
  EXPECT_THROW(group.barrier(), PeerLost) << collective.name;
}

}  // namespace

RANKS_TEST(ShmBackend, two_ranks_have_the_bits_of_gloo, 2) {
  World world = shm_world();
  ProcessGroup gloo = world.new_group({.ranks = {0, 1}, .backend = "gloo"});
  EXPECT_EQ(gloo.backend(), "gloo");
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong,
                          at::kChar, at::kByte}) {
    for (const auto op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
      for (const std::int64_t count : {1, 999, 70'001}) {
        const at::Tensor here = values(world.rank(), count, type), there = here.clone();
        world.group().all_reduce(here, {.op = op});
        gloo.all_reduce(there, {.op = op});
        EXPECT_TRUE(same_bits(here, there)) << type << " x " << count;
      }
    }
  }
}

RANKS_TEST(ShmBackend, operations_in_flight_keep_their_order, 3) {
  World world = shm_world();
  auto& group = world.group();
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 40; ++i) {
    const bool async_op = i % 4 != 3;  // now and then one that is waited for at once
    tensors.push_back(torch::full({i % 5 == 0 ? 100'000 : 7}, i + world.rank(), at::kDouble));
    Work work = i % 2 == 0 ? group.all_reduce(tensors.back(), {.async_op = async_op})
                           : group.broadcast(tensors.back(), {.root = i % 3, .async_op = async_op});
    EXPECT_TRUE(async_op || work.is_completed());
    works.push_back(std::move(work));
  }
  for (int i = 39; i >= 0; --i) {
    works[i].wait();
    const double expected = i % 2 == 0 ? 3.0 * i + 3 : i + i % 3;
    EXPECT_TRUE((tensors[i] == expected).all().item<bool>()) << i;
  }
}

RANKS_TEST(ShmBackend, futures_hold_the_results, 2) {
  World world = shm_world();
  const auto group = unwrap(world.group());
  std::vector<at::Tensor> tensors{torch::ones({5}) * (world.rank() + 1)};
  const auto future = group->allreduce(tensors)->getFuture();
  // A callback may call the group again, as hooks do; here another thread waits for that.
  c10::intrusive_ptr<c10d::Work> second;
  const auto chained = future->then(
      [&](c10::ivalue::Future& done) {
        std::vector<at::Tensor> next{done.value().toTensorVector().at(0)};
        second = group->allreduce(next);
        return c10::IValue(1);
      },
      c10::IntType::get());
  chained->waitAndThrow();
  second->wait();
  EXPECT_EQ(tensors[0].sum().item<float>(), 30);
}

RANKS_TEST(ShmBackend, tensors_of_any_shape_travel, 2) {
  World world = shm_world();
  auto& group = world.group();
  const int rank = world.rank();
  const at::Tensor base = torch::arange(24, at::kFloat).view({4, 6});
  at::Tensor columns = base.clone().t();  // not contiguous
  ASSERT_FALSE(columns.is_contiguous());
  group.all_reduce(columns);
  EXPECT_TRUE(torch::equal(columns, 2 * base.t()));
  at::Tensor every_other = torch::full({10}, rank, at::kLong);
  group.broadcast(every_other.slice(0, 0, 10, 2), {.root = 1});
  EXPECT_EQ(every_other.sum().item<std::int64_t>(), rank == 0 ? 5 : 10);
  at::Tensor image = torch::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  group.broadcast(image);
  const auto images = group.all_gather_string(std::to_string(image.sum().item<double>()));
  EXPECT_EQ(images[0], images[1]);

  at::Tensor scalar = torch::tensor(rank + 1.0);
  group.all_reduce(scalar);
  EXPECT_EQ(scalar.item<float>(), 3);
  at::Tensor complex = torch::complex(torch::ones({3}), torch::full({3}, float(rank)));
  group.all_reduce(complex, {.op = ReduceOp::avg});
  EXPECT_TRUE(torch::equal(torch::imag(complex), torch::full({3}, 0.5F)));
  at::Tensor leaf = torch::ones({3}, torch::requires_grad());
  group.all_reduce(leaf);
  EXPECT_EQ(leaf[0].item<float>(), 2);
  group.all_reduce(torch::empty({0}));
  at::Tensor truth = torch::tensor({rank == 0, false});
  group.all_reduce(truth);
  EXPECT_TRUE(truth[0].item<bool>() && !truth[1].item<bool>());
  at::Tensor sparse = torch::eye(3).to_sparse();
  group.all_reduce(sparse);
  EXPECT_TRUE(torch::equal(sparse.to_dense(), 2 * torch::eye(3)));
}

RANKS_TEST(ShmBackend, coalesced_variants_and_lists_work, 3) {
  World world = shm_world();
  const auto group = unwrap(world.group());
  const int rank = world.rank();
  std::vector<at::Tensor> several{torch::ones({4}), torch::full({2, 2}, rank, at::kLong)};
  group->allreduce_coalesced(several)->wait();
  EXPECT_EQ(several[0].sum().item<float>(), 12);
  EXPECT_EQ(several[1].sum().item<std::int64_t>(), 12);

  // ProcessGroup's own names for these change with torch 2.13.
  const auto backend = group->getBackend(c10::DeviceType::CPU);
  std::vector<at::Tensor> inputs{torch::full({2}, rank + 1.0F), torch::full({3}, 10.0F * rank)};
  std::vector<at::Tensor> outputs{torch::zeros({6}), torch::zeros({9})};
  backend->allgather_into_tensor_coalesced(outputs, inputs)->wait();
  EXPECT_EQ(outputs[0].sum().item<float>(), 12);
  EXPECT_EQ(outputs[1].sum().item<float>(), 90);

  std::vector<at::Tensor> whole{torch::arange(6, at::kFloat), torch::ones({3})};
  std::vector<at::Tensor> parts{torch::zeros({2}), torch::zeros({1})};
  backend->reduce_scatter_tensor_coalesced(parts, whole)->wait();
  EXPECT_TRUE(torch::equal(parts[0], torch::tensor({6.0F * rank, 6.0F * rank + 3})));
  EXPECT_EQ(parts[1].item<float>(), 3);

  at::Tensor rows = torch::full({3, 2}, rank, at::kInt), received = torch::zeros({3, 2}, at::kInt);
  world.group().all_to_all_single(received, rows);
  EXPECT_TRUE(torch::equal(received.select(1, 0), torch::arange(3, at::kInt)));
}

RANKS_TEST(ShmBackend, subgroups_share_memory_of_their_own, 3) {
  World world = shm_world();
  ProcessGroup pair = world.new_group({.ranks = {0, 2}});
  if (pair.is_member()) {
    EXPECT_EQ(pair.backend(), "shm");
    at::Tensor tensor = torch::full({3}, world.rank() + 1.0F);
    pair.all_reduce(tensor);
    EXPECT_EQ(tensor[0].item<float>(), 4);
  }
  world.barrier();
}

RANKS_TEST(ShmBackend, bad_arguments_are_told_and_break_nothing, 2) {
  World world = shm_world();
  auto& group = world.group();
  EXPECT_NE(error_of([&] {
              group.all_reduce(torch::ones({2}), {.op = ReduceOp::bor});
            }).find("only whole numbers"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              group.all_reduce(torch::ones({2}, at::kComplexFloat), {.op = ReduceOp::max});
            }).find("complex numbers can be added"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              group.all_to_all_single(torch::ones({3}), torch::ones({3}));
            }).find("equal parts"),
            std::string::npos);
  at::Tensor tensor = torch::ones({1});
  group.all_reduce(tensor);
  EXPECT_EQ(tensor.item<float>(), 2);
  EXPECT_THROW(init({.backend = "cuda:shm"}), InvalidArgument);
}

RANKS_TEST(ShmBackend, operations_that_differ_are_told_on_every_rank, 2) {
  World world = shm_world();
  const std::string error =
      error_of([&] { world.group().all_reduce(torch::ones({world.rank() + 1})); });
  EXPECT_NE(error.find("but rank"), std::string::npos) << error;
}

// Ranks 0 and 1 have a group with each of the others, which dies in one of the collectives.
RANKS_TEST_WITH(ShmBackend, a_rank_killed_in_any_collective_is_named,
                {.count = 10, .killed = {2, 3, 4, 5, 6, 7, 8, 9}}) {
  {
    World world = init({.backend = "shm"});
    const auto collectives = every_collective();
    std::vector<ProcessGroup> groups;
    for (int victim = 2; victim < 10; ++victim) {
      groups.push_back(world.new_group({.ranks = {0, 1, victim}}));
    }
    for (int victim = 2; victim < 10; ++victim) {
      ProcessGroup& group = groups[victim - 2];
      if (group.is_member()) lose_rank(group, collectives[victim - 2], victim);
    }
    EXPECT_TRUE(has_segments());
    await_survivors(world, {2, 3, 4, 5, 6, 7, 8, 9});
  }
  EXPECT_FALSE(has_segments());
}

RANKS_TEST(ShmBackend, abort_ends_what_is_in_flight, 2) {
  World world = shm_world();
  world.barrier();
  if (world.rank() == 1) {
    world.store().wait({"over"}, 20s);
    EXPECT_THROW(world.group().all_reduce(torch::ones({300'000})), PeerLost);
    return;
  }
  at::Tensor tensor = torch::ones({300'000});
  Work work = world.group().all_reduce(tensor, {.async_op = true});
  world.abort();
  EXPECT_THROW(work.wait(), Aborted);
  EXPECT_TRUE(work.is_completed());
  world.store().set("over", "1");
}

RANKS_TEST(ShmBackend, ranks_that_cannot_share_memory_use_gloo_and_say_why, 2) {
  const rlimit small{.rlim_cur = 1000, .rlim_max = RLIM_INFINITY};
  const rlimit none{.rlim_cur = RLIM_INFINITY, .rlim_max = RLIM_INFINITY};
  unsetenv("LOCKSTEP_QUIET");
  ::testing::internal::CaptureStderr();
  if (this_rank() == 0) setrlimit(RLIMIT_FSIZE, &small);
  {
    World world = init({.backend = "shm"});
    EXPECT_EQ(world.group().backend(), "gloo");
    at::Tensor tensor = torch::ones({1000});
    world.group().all_reduce(tensor, {.op = ReduceOp::avg});
    EXPECT_EQ(tensor[999].item<float>(), 1);
  }
  setrlimit(RLIMIT_FSIZE, &none);
  setenv("LOCKSTEP_SHM", "0", 1);
  EXPECT_EQ(init({.backend = "shm"}).group().backend(), "gloo");
  const std::string said = ::testing::internal::GetCapturedStderr();
  if (this_rank() != 0) {
    EXPECT_EQ(said, "");
    return;
  }
  EXPECT_NE(said.find("lockstep: group 0: its collectives go over TCP and not through shared "
                      "memory: it needs"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("LOCKSTEP_SHM is 0"), std::string::npos) << said;
}

RANKS_TEST(SharedTensors, are_reduced_in_place_with_the_same_bits, 3) {
  World world = init();
  auto& group = world.group();
  for (const auto type : {at::kFloat, at::kBFloat16, at::kLong}) {
    const at::Tensor mine = values(world.rank(), 300'000, type);
    const at::Tensor shared = group.shared_empty_like(mine);
    EXPECT_FALSE(group.impl()->blocks->find(mine.const_data_ptr(), mine.nbytes()).block);
    EXPECT_TRUE(group.impl()->blocks->find(shared.const_data_ptr(), shared.nbytes()).block);
    const at::Tensor copied = mine.clone();
    group.all_reduce(copied);
    shared.copy_(mine);
    group.all_reduce(shared);
    EXPECT_TRUE(same_bits(shared, copied)) << type;
    // A part of it, and one rank whose part is another.
    shared.copy_(mine);
    group.all_reduce(shared.narrow(0, 1000, 200'000));
    EXPECT_TRUE(same_bits(shared.narrow(0, 1000, 200'000), copied.narrow(0, 1000, 200'000)));
    EXPECT_TRUE(same_bits(shared.narrow(0, 0, 1000), mine.narrow(0, 0, 1000)));
    shared.fill_(1);
    at::Tensor elsewhere = torch::ones({200'000}, mine.options());
    group.all_reduce(world.rank() == 1 ? elsewhere : shared.narrow(0, 0, 200'000));
    EXPECT_EQ((world.rank() == 1 ? elsewhere : shared)[199'999].item<double>(), 3);
  }
  EXPECT_FALSE(group.impl()->blocks->find(nullptr, 0).block);
}

RANKS_TEST(SharedTensors, outlive_the_group_and_leave_nothing, 2) {
  {
    at::Tensor kept;
    {
      World world = init();
      kept = world.group().shared_empty_like(torch::ones({100'000})).fill_(world.rank() + 1);
      world.group().all_reduce(kept);
    }
    EXPECT_EQ(kept.sum().item<float>(), 300'000);
    EXPECT_TRUE(has_segments());
  }
  EXPECT_FALSE(has_segments());
}

RANKS_TEST(SharedTensors, are_ordinary_where_memory_cannot_be_shared, 2) {
  World world = init();
  if (this_rank() == 1) setenv("LOCKSTEP_SHM", "0", 1);
  at::Tensor tensor = world.group().shared_empty_like(torch::ones({100'000})).fill_(1);
  EXPECT_FALSE(world.group().impl()->blocks->find(tensor.const_data_ptr(), 4).block);
  world.group().all_reduce(tensor);
  EXPECT_EQ(tensor[0].item<float>(), 2);
}

RANKS_TEST_WITH(SharedTensors, a_rank_killed_while_they_are_reduced_is_named,
                {.count = 3, .killed = {1}}) {
  World world = init();
  at::Tensor tensor = world.group().shared_empty_like(torch::ones({8 << 20})).fill_(0);
  world.group().all_reduce(tensor);
  if (this_rank() == 1) {
    std::thread([] {
      std::this_thread::sleep_for(20ms);
      kill_this_process();
    }).detach();
  }
  try {
    while (true) world.group().all_reduce(tensor);
  } catch (const PeerLost& lost) {
    EXPECT_EQ(lost.peers(), std::vector<int>{1}) << lost.what();
  }
  await_survivors(world, {1});
}
