#include "lockstep/device_chain.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"

using namespace lockstep;

namespace {

struct Halves {
  torch::nn::Linear first{5, 7}, second{7, 3};
  std::vector<PlacedPart> on(const std::string& one, const std::string& other) {
    return {{model_part(first), one},
            {model_function([](const Tensors& x) { return Tensors{x[0].relu()}; }), one},
            {model_part(second), other}};
  }
};

}  // namespace

TEST(DeviceChain, computes_what_one_device_computes) {
  torch::manual_seed(1);
  Halves halves;
  DeviceChain chain(halves.on("cpu:0", "cpu:1"));
  EXPECT_EQ(chain.borders(), std::vector<int>{2});
  const at::Tensor x = torch::randn({7, 5});
  const at::Tensor expected = halves.second(halves.first(x).relu());
  EXPECT_TRUE(torch::equal(chain.forward({x})[0], expected));
  expected.sum().backward();
  const at::Tensor gradient = halves.first->weight.grad().clone();
  chain.module()->zero_grad();
  chain.forward({x})[0].sum().backward();
  EXPECT_TRUE(torch::equal(halves.first->weight.grad(), gradient));
  EXPECT_EQ(chain.module()->parameters().size(), 4u);
}

TEST(DeviceChain, pieces_are_joined_in_order) {
  torch::manual_seed(1);
  Halves halves;
  DeviceChain chain(halves.on("cpu:0", "cpu:1"));
  const at::Tensor x = torch::randn({7, 5});
  const at::Tensor whole = chain.forward({x})[0];
  for (const int pieces : {1, 2, 3, 7}) {
    EXPECT_TRUE(torch::allclose(chain.forward_in_pieces({x}, pieces)[0], whole)) << pieces;
  }
  EXPECT_THROW(chain.forward_in_pieces({x}, 8), InvalidArgument);
}

TEST(DeviceChain, hands_work_to_the_last_device_first) {
  using Order = std::vector<ChainVisit>;
  EXPECT_EQ(chain_order(2, 3), (Order{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}}));
  // Each piece visits the runs in their order, and so does each run the pieces.
  for (int runs = 1; runs < 5; ++runs) {
    for (int pieces = 1; pieces < 6; ++pieces) {
      std::vector<int> reached(pieces, 0), next(runs, 0);
      for (const ChainVisit& visit : chain_order(runs, pieces)) {
        EXPECT_EQ(reached[visit.piece]++, visit.run);
        EXPECT_EQ(next[visit.run]++, visit.piece);
      }
      EXPECT_EQ(reached, std::vector<int>(pieces, runs));
    }
  }
  // What parts see of it.
  std::vector<std::pair<int, std::int64_t>> seen;
  const auto noting = [&](int number) {
    return model_function([&seen, number](const Tensors& x) {
      seen.emplace_back(number, x[0][0].item<std::int64_t>());
      return x;
    });
  };
  DeviceChain chain({{noting(0), "cpu:0"}, {noting(1), "cpu:1"}});
  chain.forward_in_pieces({torch::arange(2)}, 2);
  EXPECT_EQ(seen, (std::vector<std::pair<int, std::int64_t>>{{0, 0}, {1, 0}, {0, 1}, {1, 1}}));
}

TEST(DeviceChain, refuses_devices_that_are_none) {
  const auto refusal = [](const std::string& device) -> std::string {
    try {
      DeviceChain chain({{model_part(torch::nn::Linear(1, 1)), device}});
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal("gpu:0"), "DeviceChain: 'gpu:0' is no device; write cpu, cpu:1, cuda:0, ...");
  EXPECT_EQ(refusal("cpu:0"), "accepted");
  EXPECT_THROW(DeviceChain({}), InvalidArgument);
}
