#include "pipeline/tensor_line.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/world.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// Whatever can be between two stages; the same on both ranks.
std::vector<Tensors> all_kinds() {
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({4, 6});
  return {{x},
          {x.t()},                // another layout, which is kept
          {x.slice(1, 0, 6, 2)},  // with gaps
          {x.select(0, 1).expand({3, 6})},
          {x, torch::randint(9, {5}, torch::kLong), x > 0},
          {torch::tensor(2.5, torch::kDouble), torch::empty({0, 7}), at::Tensor()},
          {x.to(torch::kBFloat16), x.to(torch::kHalf), x.to(torch::kChar)},
          {torch::complex(x, x).conj()}};
}

void expect_all_kinds(const InitOptions& options) {
  World world = init(options);
  const auto kinds = all_kinds();
  // A line each: on one of them, kinds could not change so.
  for (const Tensors& tensors : kinds) {
    constexpr int kTimes = 3;
    if (world.rank() == 0) {
      TensorSender sender({.group = world.group(), .peer = 1});
      for (int i = 0; i < kTimes; ++i) {
        sender.send({.tensors = tensors, .micro_batch = i, .rows = 4 + i});
      }
      EXPECT_EQ(sender.descriptions_sent(), 1);
      sender.finish();
      continue;
    }
    TensorReceiver receiver({.group = world.group(), .peer = 0});
    receiver.expect(kTimes);
    for (int i = 0; i < kTimes; ++i) {
      receiver.poll();
      const Parcel parcel = receiver.receive();
      EXPECT_EQ(parcel.micro_batch, i);
      EXPECT_EQ(parcel.rows, 4 + i);
      ASSERT_EQ(parcel.tensors.size(), tensors.size());
      for (std::size_t k = 0; k < tensors.size(); ++k) {
        ASSERT_EQ(parcel.tensors[k].defined(), tensors[k].defined());
        if (!tensors[k].defined()) continue;
        EXPECT_TRUE(equal_bits(parcel.tensors[k], tensors[k]));
        if (tensors[k].is_non_overlapping_and_dense()) {
          EXPECT_EQ(parcel.tensors[k].strides(), tensors[k].strides());
        }
      }
    }
  }
}

void expect_changing_shapes(const InitOptions& options) {
  World world = init(options);
  const auto of_length = [](int length) {
    return torch::full({length}, static_cast<float>(length)).requires_grad_(length % 2 == 1);
  };
  // More shapes than either end remembers, each of them twice, and then the other way round.
  constexpr int kLengths = 300, kParcels = 2 * kLengths;
  const auto length_at = [](int i, bool backwards) {
    return (backwards ? kParcels - 1 - i : i) / 2 + 1;
  };
  TensorSender sender({.group = world.group(), .peer = 1});
  TensorReceiver receiver({.group = world.group(), .peer = 0});
  for (const bool backwards : {false, true, true}) {
    if (world.rank() == 0) {
      for (int i = 0; i < kParcels; ++i) {
        sender.send({.tensors = {of_length(length_at(i, backwards))}, .micro_batch = i, .rows = 1});
        sender.finish_before(i - 3);
      }
      if (!backwards) {
        EXPECT_EQ(sender.descriptions_sent(), kLengths);
      }
      sender.finish();
      continue;
    }
    receiver.expect(kParcels);
    for (int i = 0; i < kParcels; ++i) {
      const at::Tensor expected = of_length(length_at(i, backwards));
      const Parcel parcel = receiver.receive();
      ASSERT_EQ(parcel.micro_batch, i);
      ASSERT_TRUE(equal_bits(parcel.tensors[0], expected));
      ASSERT_EQ(parcel.tensors[0].requires_grad(), expected.requires_grad());
    }
  }
}

}  // namespace

RANKS_TEST(TensorLine, carries_every_kind_of_tensor, 2) {
  expect_all_kinds({});
}
RANKS_TEST(TensorLine, carries_every_kind_of_tensor_over_gloo, 2) {
  expect_all_kinds({.backend = "gloo"});
}

RANKS_TEST(TensorLine, follows_shapes_that_change, 2) {
  expect_changing_shapes({});
}
RANKS_TEST(TensorLine, follows_shapes_that_change_over_gloo, 2) {
  expect_changing_shapes({.backend = "gloo"});
}
