#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/world.h"
#include "tests/support/ranks.h"
#include "train/slot_gradients.h"
#include "train/slot_sums.h"

using namespace lockstep;

namespace {

std::shared_ptr<torch::nn::SequentialImpl> small_net() {
  torch::manual_seed(1);
  torch::nn::Linear first(5, 8);
  torch::nn::Linear second(8, 1);
  return torch::nn::Sequential(first, torch::nn::Tanh(), second).ptr();
}

torch::Tensor input_of(int slot) {
  torch::manual_seed(100 + slot);
  return torch::randn({3, 5});
}

// The gradients of `slots` slots in one process, in slot order.
std::vector<torch::Tensor> gradients_in_one_process(int slots) {
  World world = init({.store = Store::tcp({.serve = true}), .rank = 0, .world_size = 1});
  auto net = small_net();
  SlotGradients gradients(world.group(), SlotShare::of(slots, 0, 1), net->parameters());
  for (int slot = 0; slot < slots; ++slot) {
    net->forward(input_of(slot)).square().mean().backward();
    gradients.put_aside();
  }
  gradients.reduce();
  std::vector<torch::Tensor> result;
  for (const auto& parameter : net->parameters()) result.push_back(parameter.grad());
  return result;
}

void expect_equal(const std::vector<torch::Tensor>& actual,
                  const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(torch::equal(actual[i], expected[i]));
}

// Values whose sum depends on the order in which they are added.
std::vector<double> row_of(int slot) {
  return {0.1 * (slot + 1), slot % 2 == 0 ? 1e17 : -1e17};
}

std::vector<double> sum_in_order(int slots) {
  std::vector<double> sum = row_of(0);
  for (int slot = 1; slot < slots; ++slot) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += row_of(slot)[i];
  }
  return sum;
}

void expect_sums(int slots) {
  World world = init();
  const SlotShare share = SlotShare::of(slots, world.rank(), world.world_size());
  SlotSums sums(world.group(), share);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<double>> rows;
    for (int slot = share.first; slot < share.last; ++slot) rows.push_back(row_of(slot));
    EXPECT_EQ(sums.add(rows), sum_in_order(slots));
  }
}

void expect_gradients(int slots) {
  const auto expected = gradients_in_one_process(slots);
  World world = init();
  const SlotShare share = SlotShare::of(slots, world.rank(), world.world_size());
  auto net = small_net();
  SlotGradients gradients(world.group(), share, net->parameters());
  for (int slot = share.first; slot < share.last; ++slot) {
    net->forward(input_of(slot)).square().mean().backward();
    gradients.put_aside();
  }
  gradients.reduce();
  std::vector<torch::Tensor> actual;
  for (const auto& parameter : net->parameters()) actual.push_back(parameter.grad());
  expect_equal(actual, expected);
}

}  // namespace

TEST(SlotShare, slots_are_spread_evenly_and_all_are_taken) {
  for (int slots = 1; slots <= 9; ++slots) {
    for (int world = 1; world <= slots; ++world) {
      int next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const SlotShare share = SlotShare::of(slots, rank, world);
        EXPECT_EQ(share.first, next);
        EXPECT_GE(share.count(), slots / world);
        EXPECT_LE(share.count(), (slots + world - 1) / world);
        next = share.last;
      }
      EXPECT_EQ(next, slots);
    }
  }
}

RANKS_TEST(SlotSums, one_slot_each_adds_in_slot_order, 3) {
  expect_sums(3);
}
RANKS_TEST(SlotSums, several_slots_each_add_in_slot_order, 2) {
  expect_sums(4);
}
RANKS_TEST(SlotSums, uneven_shares_add_in_slot_order, 3) {
  expect_sums(5);
}

RANKS_TEST(SlotGradients, two_processes_with_four_slots_have_the_bits_of_one, 2) {
  expect_gradients(4);
}
RANKS_TEST(SlotGradients, uneven_shares_have_the_bits_of_one_process, 2) {
  expect_gradients(3);
}

RANKS_TEST(SlotGradients, data_parallel_training_has_the_bits_of_one_process, 3) {
  const auto expected = gradients_in_one_process(3);
  World world = init();
  auto net = small_net();
  DistributedDataParallel ddp(world, net);
  ddp.forward(input_of(world.rank())).square().mean().backward();
  std::vector<torch::Tensor> actual;
  for (const auto& parameter : net->parameters()) actual.push_back(parameter.grad());
  expect_equal(actual, expected);
}

RANKS_TEST(SlotGradients, a_parameter_without_gradient_in_any_slot_has_none_afterwards, 2) {
  World world = init();
  auto used = torch::ones({2}, torch::requires_grad());
  auto sometimes = torch::ones({2}, torch::requires_grad());
  auto unused = torch::ones({2}, torch::requires_grad());
  SlotGradients gradients(world.group(), SlotShare::of(2, world.rank(), 2),
                          {used, sometimes, unused});
  auto loss = used.sum();
  if (world.rank() == 1) loss = loss + 3 * sometimes.sum();
  loss.backward();
  gradients.put_aside();
  gradients.reduce();
  EXPECT_TRUE(torch::equal(used.grad(), torch::ones({2})));
  EXPECT_TRUE(torch::equal(sometimes.grad(), torch::full({2}, 1.5)));
  EXPECT_FALSE(unused.grad().defined());
}
