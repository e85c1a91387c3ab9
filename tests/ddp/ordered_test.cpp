#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/ordered_reduction.h"
#include "comm/ordered_sum.h"
#include "lockstep/ddp.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

at::Tensor input_of(int step, int slot) {
  torch::manual_seed(1000 + 10 * step + slot);
  return torch::randn({4, 200});
}

std::shared_ptr<Wide> make_model(at::ScalarType type) {
  torch::manual_seed(7);
  auto model = std::make_shared<Wide>();
  model->to(type);
  return model;
}

void descend(Wide& model) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters()) parameter.sub_(parameter.grad(), 0.1);
}

// The mean gradient as one process computes it: slot after slot, added in slot order.
void reference_step(Wide& model, int step, int slots, at::ScalarType type) {
  std::vector<std::vector<at::Tensor>> by_parameter(model.parameters().size());
  for (int slot = 0; slot < slots; ++slot) {
    model.zero_grad();
    model.forward(input_of(step, slot).to(type)).pow(2).sum().backward();
    std::size_t i = 0;
    for (auto& parameter : model.parameters())
      by_parameter[i++].push_back(parameter.grad().clone());
  }
  std::size_t i = 0;
  for (auto& parameter : model.parameters()) {
    const bool narrow = type == at::kBFloat16;
    at::Tensor sum = by_parameter[i][0].to(narrow ? at::kFloat : type);
    for (int slot = 1; slot < slots; ++slot)
      sum = sum + by_parameter[i][slot].to(sum.scalar_type());
    parameter.mutable_grad() = (sum / slots).to(type);
    ++i;
  }
  descend(model);
}

// Trains with DDP and alone, side by side; the weights must be the same bits after every step.
void expect_ordered(at::ScalarType type, std::optional<double> bucket_cap_mb, bool views) {
  World world = init();
  torch::set_num_threads(1);
  auto alone = make_model(type), together = make_model(type);
  DistributedDataParallel ddp(world, together,
                              {.bucket_cap_mb = bucket_cap_mb,
                               .gradient_as_bucket_view = views,
                               .reduction = Reduction::ordered});
  for (int step = 0; step < 4; ++step) {  // the buckets change after the first
    ddp.zero_grad();
    ddp(input_of(step, world.rank()).to(type)).pow(2).sum().backward();
    descend(*together);
    reference_step(*alone, step, world.world_size(), type);
    for (const auto& parameter : together->named_parameters()) {
      ASSERT_TRUE(equal_bits(parameter.value(), alone->named_parameters()[parameter.key()]))
          << parameter.key() << " after step " << step;
    }
  }
}

}  // namespace

TEST(OrderedSum, adds_in_slot_order_and_rounds_once) {
  // (1 + 1e8) - 1e8 is 0 in float and 1 - 1e8 + 1e8 is 0, but 1e8 - 1e8 + 1 is 1: order shows.
  const std::vector<at::Tensor> slots{torch::full({3000}, 1e8f), torch::full({3000}, -1e8f),
                                      torch::full({3000}, 1.0f)};
  at::Tensor out = torch::empty({3000});
  ordered_mean(slots, 2.0, out);
  EXPECT_TRUE(equal_bits(out, torch::full({3000}, 0.5f)));
  ordered_mean({slots[2], slots[0], slots[1]}, 2.0, out);
  EXPECT_TRUE(equal_bits(out, torch::zeros({3000})));
  // In bfloat16, 256 + 1 + 1 would stay 256 if every sum were rounded.
  const std::vector<at::Tensor> narrow{torch::full({5}, 256, at::kBFloat16),
                                       torch::ones({5}, at::kBFloat16),
                                       torch::ones({5}, at::kBFloat16)};
  at::Tensor narrow_out = torch::empty({5}, at::kBFloat16);
  ordered_mean(narrow, 1.0, narrow_out);
  EXPECT_TRUE(equal_bits(narrow_out, torch::full({5}, 258, at::kBFloat16)));
  EXPECT_THROW(ordered_mean({torch::ones({2}, at::kLong)}, 1.0, torch::ones({2}, at::kLong)),
               Error);
}

namespace {

// Lengths that make several pieces, uneven shards and shards of one element or none.
void expect_lengths_of_all_kinds() {
  World world = init();
  OrderedReduction reduction(world.group().impl());
  const auto contribution = [](int length, int slot) {
    torch::manual_seed(100 + slot);
    return torch::randn({length});
  };
  for (const int length : {1, 2, 5, 4097, 262'144, 1'500'007}) {
    std::vector<at::Tensor> slots;
    for (int slot = 0; slot < world.world_size(); ++slot)
      slots.push_back(contribution(length, slot));
    at::Tensor expected = slots[0].clone();
    for (std::size_t slot = 1; slot < slots.size(); ++slot) expected += slots[slot];
    expected /= world.world_size();

    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    for (const auto urgency :
         {OrderedReduction::Urgency::overlap, OrderedReduction::Urgency::overlap,
          OrderedReduction::Urgency::wait_now}) {
      futures.push_back(reduction.mean(slots[world.rank()].clone(), urgency));
    }
    for (auto& future : futures) {
      future->waitAndThrow();
      EXPECT_TRUE(equal_bits(future->value().toTensor(), expected)) << length;
    }
  }
}

}  // namespace

RANKS_TEST(Ordered, any_length_is_reduced_by_two_ranks, 2) {
  expect_lengths_of_all_kinds();
}
RANKS_TEST(Ordered, any_length_is_reduced_by_three_ranks, 3) {
  expect_lengths_of_all_kinds();
}
RANKS_TEST(Ordered, any_length_is_reduced_by_four_ranks, 4) {
  expect_lengths_of_all_kinds();
}

RANKS_TEST_WITH(Ordered, any_length_is_reduced_by_two_ranks_over_tcp,
                {.count = 2, .environment = {{"LOCKSTEP_SHM", "0"}}}) {
  expect_lengths_of_all_kinds();
}
RANKS_TEST_WITH(Ordered, any_length_is_reduced_by_four_ranks_over_tcp,
                {.count = 4, .environment = {{"LOCKSTEP_SHM", "0"}}}) {
  expect_lengths_of_all_kinds();
}

RANKS_TEST(Ordered, two_ranks_equal_one_process, 2) {
  expect_ordered(at::kFloat, std::nullopt, false);
}
RANKS_TEST(Ordered, two_ranks_with_small_buckets_equal_one_process, 2) {
  expect_ordered(at::kFloat, 0.05, false);
}
RANKS_TEST(Ordered, three_ranks_equal_one_process, 3) {
  expect_ordered(at::kFloat, std::nullopt, false);
}
RANKS_TEST_WITH(Ordered, three_ranks_over_tcp_equal_one_process,
                {.count = 3, .environment = {{"LOCKSTEP_SHM", "0"}}}) {
  expect_ordered(at::kFloat, 0.05, false);
}
RANKS_TEST(Ordered, three_ranks_with_small_buckets_equal_one_process, 3) {
  expect_ordered(at::kFloat, 0.05, false);
}
RANKS_TEST(Ordered, four_ranks_equal_one_process, 4) {
  expect_ordered(at::kFloat, std::nullopt, false);
}
RANKS_TEST(Ordered, four_ranks_with_small_buckets_equal_one_process, 4) {
  expect_ordered(at::kFloat, 0.05, false);
}
RANKS_TEST(Ordered, bucket_views_equal_one_process, 3) {
  expect_ordered(at::kFloat, 0.05, true);
}
RANKS_TEST(Ordered, doubles_equal_one_process, 3) {
  expect_ordered(at::kDouble, 0.05, false);
}
RANKS_TEST(Ordered, bfloat16_equals_one_process, 3) {
  expect_ordered(at::kBFloat16, 0.05, false);
}
