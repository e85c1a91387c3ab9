#include "models/fused_ops.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/column_sum.h"
#include "kernels/layer_norm.h"

namespace lockstep::fused {
namespace {

using kernels::Bf16;
using kernels::Epilogue;
using kernels::Gemm;

kernels::LayerNormShape shape_of(const at::Tensor& rows) {
  return {.rows = static_cast<int>(rows.size(0)), .columns = static_cast<int>(rows.size(1))};
}

}  // namespace

Bf16* bits(const at::Tensor& tensor) {
  return reinterpret_cast<Bf16*>(tensor.data_ptr<at::BFloat16>());
}
float* floats(const at::Tensor& tensor) {
  return tensor.data_ptr<float>();
}
kernels::Stream stream() {
  return at::cuda::getCurrentCUDAStream().stream();
}

at::Tensor empty_rows(const at::Tensor& like, std::int64_t columns) {
  return at::empty({like.size(0), columns}, like.options());
}
at::Tensor empty_floats(const at::Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().dtype(at::kFloat));
}
void Unfinished::finish() const {
  kernels::finish_sums(sums, stream());
}

at::Tensor norm(const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& beta,
                double epsilon, at::Tensor& mean, at::Tensor& rstd) {
  const at::Tensor out = at::empty_like(x);
  mean = empty_floats(x, {x.size(0)});
  rstd = empty_floats(x, {x.size(0)});
  kernels::layer_norm_forward({.x = bits(x),
                               .gamma = bits(gamma),
                               .beta = bits(beta),
                               .out = bits(out),
                               .mean = floats(mean),
                               .rstd = floats(rstd),
                               .epsilon = static_cast<float>(epsilon)},
                              shape_of(x), stream());
  return out;
}

at::Tensor linear(Gemm& gemm, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const at::Tensor& addend, const at::Tensor& before_gelu) {
  const at::Tensor out = empty_rows(x, weight.size(1));
  gemm.run({.m = x.size(0),
            .n = weight.size(1),
            .k = weight.size(0),
            .a = bits(x),
            .b = bits(weight),
            .out = out.data_ptr(),
            .addend = addend.defined() ? bits(addend) : nullptr,
            .epilogue = before_gelu.defined() ? Epilogue::bias_and_gelu : Epilogue::bias,
            .bias = bits(bias),
            .aux = before_gelu.defined() ? bits(before_gelu) : nullptr},
           stream());
  return out;
}

at::Tensor linear_input_gradient(Gemm& gemm, const at::Tensor& gradient, const at::Tensor& weight,
                                 const at::Tensor& before_gelu) {
  const at::Tensor out = empty_rows(gradient, weight.size(0));
  gemm.run({.m = gradient.size(0),
            .n = weight.size(0),
            .k = weight.size(1),
            .a = bits(gradient),
            .b = bits(weight),
            .transpose_b = true,
            .out = out.data_ptr(),
            .epilogue = before_gelu.defined() ? Epilogue::gelu_gradient : Epilogue::none,
            .aux = before_gelu.defined() ? bits(before_gelu) : nullptr},
           stream());
  return out;
}

at::Tensor linear_weight_gradient(Gemm& gemm, const at::Tensor& x, const at::Tensor& gradient) {
  const at::Tensor out = empty_floats(x, {x.size(1), gradient.size(1)});
  gemm.run({.m = x.size(1),
            .n = gradient.size(1),
            .k = x.size(0),
            .a = bits(x),
            .b = bits(gradient),
            .transpose_a = true,
            .out = out.data_ptr(),
            .out_is_float = true},
           stream());
  return out;
}

at::Tensor bias_gradient(const at::Tensor& gradient) {
  const int rows = static_cast<int>(gradient.size(0)), columns = static_cast<int>(gradient.size(1));
  const at::Tensor out = empty_floats(gradient, {columns});
  const at::Tensor partial = empty_floats(gradient, {kernels::column_sum_scratch(rows, columns)});
  kernels::column_sum(bits(gradient), floats(out), floats(partial), rows, columns, stream());
  return out;
}

at::Tensor attention_bias_gradient(const Summed& qkv, const at::Tensor& projected_sums,
                                   const at::Tensor& projection) {
  const int rows = static_cast<int>(qkv.rows.size(0));
  const int width = static_cast<int>(qkv.rows.size(1) / 3);
  const at::Tensor out = empty_floats(qkv.rows, {3 * width});
  kernels::AttentionBiasGradient pass{.qkv_gradient = bits(qkv.rows),
                                      .queries = {},
                                      .projected_sums = floats(projected_sums),
                                      .projection = bits(projection),
                                      .out = floats(out),
                                      .partial = nullptr};
  at::Tensor partial;
  if (qkv.unfinished) {
    pass.queries = qkv.unfinished->sums;
  } else {
    partial = empty_floats(qkv.rows, {kernels::column_sum_scratch(rows, width)});
    pass.partial = floats(partial);
  }
  kernels::attention_bias_gradient(pass, rows, width, stream());
  return out;
}

Summed join(const std::array<at::Tensor, 3>& parts) {
  const int rows = static_cast<int>(parts[0].size(0)), width = static_cast<int>(parts[0].size(1));
  const Summed result{.rows = empty_rows(parts[0], 3 * width),
                      .sums = empty_floats(parts[0], {3 * width})};
  const at::Tensor partial = empty_floats(parts[0], {kernels::column_sum_scratch(rows, 3 * width)});
  kernels::join_columns({.parts = {bits(parts[0]), bits(parts[1]), bits(parts[2])},
                         .out = bits(result.rows),
                         .sums = floats(result.sums),
                         .partial = floats(partial)},
                        rows, width, stream());
  return result;
}

Summed gelu_gradient(const at::Tensor& gradient, const at::Tensor& before_gelu) {
  const int rows = static_cast<int>(gradient.size(0)), columns = static_cast<int>(gradient.size(1));
  Summed result{.rows = at::empty_like(gradient), .sums = empty_floats(gradient, {columns})};
  const at::Tensor partial = empty_floats(gradient, {kernels::column_sum_scratch(rows, columns)});
  result.unfinished = {.sums = kernels::gelu_gradient({.gradient = bits(gradient),
                                                       .before = bits(before_gelu),
                                                       .out = bits(result.rows),
                                                       .sums = floats(result.sums),
                                                       .partial = floats(partial)},
                                                      rows, columns, stream()),
                       .partial = partial};
  return result;
}

NormGradients norm_gradients(const at::Tensor& gradient, const at::Tensor& x,
                             const at::Tensor& gamma, const at::Tensor& mean,
                             const at::Tensor& rstd, const at::Tensor& past,
                             const at::Tensor& factors) {
  const auto shape = shape_of(x);
  NormGradients result{.x = at::empty_like(x),
                       .gamma = empty_floats(x, {x.size(1)}),
                       .beta = empty_floats(x, {x.size(1)}),
                       .bias = empty_floats(x, {x.size(1)}),
                       .unfinished = {}};
  const at::Tensor partial = empty_floats(x, {kernels::layer_norm_backward_scratch(shape)});
  result.unfinished = {.sums = kernels::layer_norm_backward(
                           {.dout = bits(gradient),
                            .factors = factors.defined() ? floats(factors) : nullptr,
                            .x = bits(x),
                            .gamma = bits(gamma),
                            .mean = floats(mean),
                            .rstd = floats(rstd),
                            .residual = past.defined() ? bits(past) : nullptr,
                            .dx = bits(result.x),
                            .dgamma = floats(result.gamma),
                            .dbeta = floats(result.beta),
                            .dbias = floats(result.bias),
                            .partial = floats(partial)},
                           shape, stream()),
                       .partial = partial};
  return result;
}

}  // namespace lockstep::fused
