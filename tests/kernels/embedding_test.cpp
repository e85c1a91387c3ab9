#include "kernels/embedding.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/tensors.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

class EmbeddingKernel : public ::testing::TestWithParam<kernels::EmbeddingShape> {};

TEST_P(EmbeddingKernel, ForwardAndBackwardAreThoseOfAten) {
  const kernels::EmbeddingShape shape = GetParam();
  torch::manual_seed(shape.columns);
  // Some tokens are frequent, as in texts.
  const at::Tensor ids =
      copy_of((torch::rand({shape.batch, shape.length}).pow(4) * shape.vocabulary)
                  .to(at::kLong)
                  .to(kDevice));
  const at::Tensor tokens = random_bf16({shape.vocabulary, shape.columns});
  const at::Tensor positions = random_bf16({shape.length, shape.columns});
  const at::Tensor out = empty_bf16({shape.batch, shape.length, shape.columns});
  kernels::embedding_forward(ids.data_ptr<std::int64_t>(), bf16(tokens), bf16(positions), bf16(out),
                             shape, current_stream());
  EXPECT_TRUE(out.equal(at::embedding(tokens, ids) + positions));

  const at::Tensor dout = random_bf16(out.sizes());
  const at::Tensor before = torch::randn(tokens.sizes(), kDevice);
  const at::Tensor dtokens = copy_of(before);
  const at::Tensor dpositions = empty_f32(positions.sizes());
  const auto bytes = static_cast<std::int64_t>(kernels::embedding_backward_scratch(shape));
  const at::Tensor scratch = empty_tensor({bytes}, at::kByte);
  const auto backward = [&] {
    kernels::embedding_backward(ids.data_ptr<std::int64_t>(), bf16(dout), f32(dtokens),
                                f32(dpositions), scratch.data_ptr(), shape, current_stream());
  };
  backward();
  const at::Tensor exact =
      before.to(at::kDouble)
          .index_add(0, ids.flatten(), dout.to(at::kDouble).view({-1, shape.columns}));
  const double size = std::sqrt(0.1 * shape.batch * shape.length);
  EXPECT_LE(roundings(dtokens, exact, size), 1e-3);
  EXPECT_LE(roundings(dpositions, dout.to(at::kDouble).sum(0), 1.0), 1e-3);

  const at::Tensor first = dtokens.clone();
  dtokens.copy_(before);
  backward();
  EXPECT_TRUE(dtokens.equal(first));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, EmbeddingKernel,
    ::testing::ValuesIn(by_device<std::vector<kernels::EmbeddingShape>>(
        {{1, 1, 8, 3}, {3, 17, 64, 203}, {4, 1024, 768, 50257}, {2, 100, 1600, 50257}},
        {{1, 1, 8, 3}, {3, 17, 64, 203}, {5, 100, 264, 31}})));

}  // namespace
