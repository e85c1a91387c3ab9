#include <cstdlib>
#include <map>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/group_impl.h"
#include "comm/ordered_reduction.h"
#include "lockstep/error.h"
#include "lockstep/world.h"
#include "tests/comm/collective_matrix.h"
#include "tests/support/ranks.h"

// Floats that are packed on their way to another machine. On the links of a test nothing would be,
// unless it has to; hybrid_link_test.py counts bytes.
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

const std::map<std::string, std::string> kPacked = {{"LOCKSTEP_WIRE", "packed"}};

World packing_world() {
  World world = init({.backend = "hybrid", .timeout = 60s});
  EXPECT_EQ(world.group().backend(), "hybrid");
  return world;
}

// Every third number is any bits: infinities, what is no number, and what is not normal.
at::Tensor with_any_bits(at::ScalarType type, at::ScalarType bits_of) {
  constexpr std::int64_t n = 700'001;
  const at::Tensor bits = torch::randn({n}).to(type).view(bits_of);
  const at::Tensor any = torch::randint(INT32_MIN, INT32_MAX, {n}, at::kLong).to(bits_of);
  return torch::where(torch::arange(n) % 3 == 0, any, bits).view(type);
}

// Nobody waits for a rank that died in the middle of a packed tensor.
void expect_release_from(const std::function<void(ProcessGroup&)>& collective, int victim) {
  World world = packing_world();
  collective(world.group());
  world.barrier();
  if (this_rank() == victim) {
    std::thread([] {
      std::this_thread::sleep_for(20ms);
      kill_this_process();
    }).detach();
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(while (true) collective(world.group()), PeerLost);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
}

}  // namespace

RANKS_TEST_WITH(Wire, packed_between_two_machines,
                {.count = 4, .environment = kPacked, .machines = 2}) {
  World world = packing_world();
  expect_every_collective(world);
}

RANKS_TEST_WITH(Wire, packed_between_three_machines,
                {.count = 5, .environment = kPacked, .machines = 3}) {
  World world = packing_world();
  expect_every_collective(world);
}

RANKS_TEST_WITH(Wire, a_sender_decides_for_itself, {.count = 4, .machines = 2}) {
  setenv("LOCKSTEP_WIRE", this_rank() < 2 ? "packed" : "plain", 1);
  World world = packing_world();
  expect_every_collective(world);
}

RANKS_TEST_WITH(Wire, every_bit_comes_back, {.count = 3, .environment = kPacked, .machines = 2}) {
  World world = packing_world();
  for (const auto& [type, bits_of] :
       {std::pair(at::kFloat, at::kInt), {at::kBFloat16, at::kShort}}) {
    torch::manual_seed(world.rank());
    const at::Tensor mine = with_any_bits(type, bits_of);
    std::vector<at::Tensor> all(3);
    for (at::Tensor& each : all) each = torch::empty_like(mine);
    world.group().all_gather(all, mine);
    for (int root = 0; root < 3; ++root) {
      const at::Tensor sent = mine.clone(), plain = mine.view(bits_of).clone();
      world.group().broadcast(sent, {.root = root});
      world.group().broadcast(plain, {.root = root});  // whole numbers are not packed
      EXPECT_TRUE(equal_bits(sent.view(bits_of), plain)) << root;
      EXPECT_TRUE(equal_bits(all[root], sent)) << root;
    }
  }
}

RANKS_TEST_WITH(Wire, ordered_reductions_have_the_same_bits,
                {.count = 5, .environment = kPacked, .machines = 2}) {
  World world = init({.backend = "gloo"});
  OrderedReduction reduction(world.group().impl());
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t count : {5'000, 300'001}) {
      const auto future =
          reduction.mean(tensor_of(world.rank(), count, type), OrderedReduction::Urgency::overlap);
      future->waitAndThrow();
      EXPECT_TRUE(equal_bits(future->value().toTensor(),
                             reduced(of_all_ranks(5, count, type), ReduceOperator::sum, 5)))
          << type << " x " << count;
    }
  }
  EXPECT_TRUE(world.group().impl()->shm->in_use());
}

TEST(Wire, an_unknown_way_is_refused) {
  setenv("LOCKSTEP_WIRE", "zip", 1);
  try {
    init();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "LOCKSTEP_WIRE is 'zip'; it must be auto, packed or plain");
  }
  unsetenv("LOCKSTEP_WIRE");
}

RANKS_TEST_WITH(WireDeath, of_a_leader_in_all_reduce,
                {.count = 4, .killed = {2}, .environment = kPacked, .machines = 2}) {
  const at::Tensor data = torch::zeros({2'000'000});
  expect_release_from([&](ProcessGroup& group) { group.all_reduce(data.normal_()); }, 2);
}

RANKS_TEST_WITH(WireDeath, of_a_rank_in_all_gather,
                {.count = 4, .killed = {1}, .environment = kPacked, .machines = 2}) {
  const at::Tensor data = torch::randn({500'000}), all = torch::zeros({2'000'000});
  expect_release_from([&](ProcessGroup& group) { group.all_gather_into_tensor(all, data); }, 1);
}

RANKS_TEST_WITH(WireDeath, of_a_leader_in_broadcast,
                {.count = 4, .killed = {2}, .environment = kPacked, .machines = 2}) {
  const at::Tensor data = torch::randn({2'000'000});
  expect_release_from([&](ProcessGroup& group) { group.broadcast(data); }, 2);
}
