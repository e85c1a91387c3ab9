#include "kernels/layer_norm.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/column_sum.h"
#include "tests/kernels/tensors.h"

// Against ATen in float64, which starts from the same bfloat16s.
using namespace lockstep;
using namespace lockstep::testing;

namespace {

struct Norm {
  explicit Norm(int rows, int columns) : shape{rows, columns} {
    torch::manual_seed(columns);
    x = copy_of(random_bf16({rows, columns}, 2.0) + 0.5);
    gamma = copy_of(random_bf16({columns}) + 1.0);
    beta = random_bf16({columns});
    out = empty_bf16({rows, columns});
    mean = empty_f32({rows});
    rstd = empty_f32({rows});
  }
  void forward(const at::Tensor& addend = {}, const at::Tensor& sum = {}) {
    kernels::layer_norm_forward({.x = bf16(x),
                                 .addend = addend.defined() ? bf16(addend) : nullptr,
                                 .gamma = bf16(gamma),
                                 .beta = bf16(beta),
                                 .sum = sum.defined() ? bf16(sum) : nullptr,
                                 .out = bf16(out),
                                 .mean = f32(mean),
                                 .rstd = f32(rstd)},
                                shape, current_stream());
  }
  at::Tensor reference(const at::Tensor& input) const {
    return at::layer_norm(input.to(at::kDouble), {shape.columns}, gamma.to(at::kDouble),
                          beta.to(at::kDouble), 1e-5);
  }

  kernels::LayerNormShape shape;
  at::Tensor x, gamma, beta, out, mean, rstd;
};

class LayerNormKernel : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(LayerNormKernel, ForwardRoundsOnce) {
  Norm norm(GetParam().first, GetParam().second);
  norm.forward();
  EXPECT_LE(roundings(norm.out, norm.reference(norm.x), 0.1), 1.01);
}

TEST_P(LayerNormKernel, ForwardAddsWhatComesBeside) {
  Norm norm(GetParam().first, GetParam().second);
  const at::Tensor addend = random_bf16(norm.x.sizes());
  const at::Tensor sum = empty_bf16(norm.x.sizes());
  norm.forward(addend, sum);
  EXPECT_TRUE(sum.equal(norm.x + addend));  // ATen adds in float32 and rounds once, too
  EXPECT_LE(roundings(norm.out, norm.reference(sum), 0.1), 1.01);
}

TEST_P(LayerNormKernel, BackwardGivesAllGradients) {
  Norm norm(GetParam().first, GetParam().second);
  norm.forward();
  const int columns = norm.shape.columns;
  const at::Tensor dout = random_bf16(norm.x.sizes());
  const at::Tensor past = random_bf16(norm.x.sizes());
  const at::Tensor factors = copy_of(torch::rand({norm.shape.rows}, kDevice) + 0.5);
  const at::Tensor dx = empty_bf16(norm.x.sizes());
  const at::Tensor dgamma = empty_f32({columns}), dbeta = empty_f32({columns}),
                   dbias = empty_f32({columns});
  const at::Tensor partial = empty_f32({kernels::layer_norm_backward_scratch(norm.shape)});
  for (const bool has_factors : {false, true}) {
    const kernels::LayerNormBackward pass{.dout = bf16(dout),
                                          .factors = has_factors ? f32(factors) : nullptr,
                                          .x = bf16(norm.x),
                                          .gamma = bf16(norm.gamma),
                                          .mean = f32(norm.mean),
                                          .rstd = f32(norm.rstd),
                                          .residual = bf16(past),
                                          .dx = bf16(dx),
                                          .dgamma = f32(dgamma),
                                          .dbeta = f32(dbeta),
                                          .dbias = f32(dbias),
                                          .partial = f32(partial)};
    const auto backward = [&] {
      finish_sums(kernels::layer_norm_backward(pass, norm.shape, current_stream()),
                  current_stream());
    };
    backward();

    const at::Tensor x = norm.x.to(at::kDouble).requires_grad_();
    const at::Tensor gamma = norm.gamma.to(at::kDouble).requires_grad_();
    const at::Tensor beta = norm.beta.to(at::kDouble).requires_grad_();
    at::Tensor upstream = dout.to(at::kDouble);
    if (has_factors) upstream = upstream * factors.unsqueeze(1);
    at::layer_norm(x, {columns}, gamma, beta, 1e-5).backward(upstream);
    const at::Tensor exact = x.grad() + past.to(at::kDouble);
    EXPECT_LE(roundings(dx, exact, 0.1), 1.05);
    // Of a sum of such values.
    const double size = std::sqrt(static_cast<double>(norm.shape.rows));
    EXPECT_LE(roundings(dgamma, gamma.grad(), size), 1e-3);
    EXPECT_LE(roundings(dbeta, beta.grad(), size), 1e-3);
    EXPECT_LE(roundings(dbias, exact.sum(0), size), 1e-3);

    const std::vector<at::Tensor> first = {dx.clone(), dgamma.clone(), dbeta.clone(),
                                           dbias.clone()};
    backward();
    const std::vector<at::Tensor> second = {dx, dgamma, dbeta, dbias};
    for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i].equal(second[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LayerNormKernel, ::testing::ValuesIn(row_shapes()));

TEST(LayerNormKernel, RefusesShapesThatItDoesNotKnow) {
  Norm norm(2, 16);
  norm.shape.columns = 12;
  EXPECT_THROW(norm.forward(), std::invalid_argument);
  norm.shape = {0, 16};
  EXPECT_THROW(norm.forward(), std::invalid_argument);
}

}  // namespace
