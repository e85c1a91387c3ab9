#include "models/fused_block.h"

#include <tuple>

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>

#include "kernels/column_sum.h"
#include "kernels/layer_norm.h"

namespace lockstep {
namespace {

using kernels::Bf16;
using kernels::Epilogue;
using kernels::Gemm;
using kernels::Product;

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
kernels::LayerNormShape shape_of(const at::Tensor& rows) {
  return {.rows = static_cast<int>(rows.size(0)), .columns = static_cast<int>(rows.size(1))};
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

// x * weight + bias, with what the epilogue adds to it.
at::Tensor linear(Gemm& gemm, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  const at::Tensor& addend = {}, const at::Tensor& before_gelu = {}) {
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

// gradient * weight^T: the gradient of what went into linear().
at::Tensor linear_input_gradient(Gemm& gemm, const at::Tensor& gradient, const at::Tensor& weight,
                                 const at::Tensor& before_gelu = {}) {
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

// x^T * gradient, in float32.
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

struct NormGradients {
  at::Tensor x, gamma, beta, bias;
};

// `past` is the gradient that goes by the norm; `bias` the column sums of the result.
NormGradients norm_gradients(const at::Tensor& gradient, const at::Tensor& x,
                             const at::Tensor& gamma, const at::Tensor& mean,
                             const at::Tensor& rstd, const at::Tensor& past, bool wants_bias) {
  const auto shape = shape_of(x);
  NormGradients result{.x = at::empty_like(x),
                       .gamma = empty_floats(x, {x.size(1)}),
                       .beta = empty_floats(x, {x.size(1)}),
                       .bias = wants_bias ? empty_floats(x, {x.size(1)}) : at::Tensor()};
  const at::Tensor partial = empty_floats(x, {kernels::layer_norm_backward_scratch(shape)});
  kernels::layer_norm_backward({.dout = bits(gradient),
                                .x = bits(x),
                                .gamma = bits(gamma),
                                .mean = floats(mean),
                                .rstd = floats(rstd),
                                .residual = bits(past),
                                .dx = bits(result.x),
                                .dgamma = floats(result.gamma),
                                .dbeta = floats(result.beta),
                                .dbias = wants_bias ? floats(result.bias) : nullptr,
                                .partial = floats(partial)},
                               shape, stream());
  return result;
}

// Queries, keys and values of all heads, [batch, heads, tokens, head size], as views of one matrix.
std::array<at::Tensor, 3> heads_of(const at::Tensor& qkv, const FusedBlockOptions& options) {
  const std::int64_t width = qkv.size(1) / 3;
  const at::Tensor parts =
      qkv.view({options.batch, options.tokens, 3, options.heads, width / options.heads});
  return {parts.select(2, 0).transpose(1, 2), parts.select(2, 1).transpose(1, 2),
          parts.select(2, 2).transpose(1, 2)};
}

at::Tensor as_heads(const at::Tensor& rows, const FusedBlockOptions& options) {
  return rows.view({options.batch, options.tokens, options.heads, rows.size(1) / options.heads})
      .transpose(1, 2);
}

at::Tensor attend(const FusedBlockOptions& options, FusedBlockState& state) {
  const auto [query, key, value] = heads_of(state.qkv, options);
  const auto result = at::_scaled_dot_product_cudnn_attention(
      query, key, value, /*attn_bias=*/{}, /*compute_log_sumexp=*/true, /*dropout_p=*/0,
      /*is_causal=*/true, /*return_debug_mask=*/false, options.attention_scale);
  state.log_sum_exp = std::get<1>(result);
  state.seed = std::get<6>(result);
  state.offset = std::get<7>(result);
  const at::Tensor& heads = std::get<0>(result);
  return heads.transpose(1, 2).reshape({state.x.size(0), state.x.size(1)});
}

at::Tensor attention_gradient(const at::Tensor& gradient, const FusedBlockOptions& options,
                              const FusedBlockState& state) {
  const auto [query, key, value] = heads_of(state.qkv, options);
  const auto [query_gradient, key_gradient, value_gradient] =
      at::_scaled_dot_product_cudnn_attention_backward(
          as_heads(gradient, options), query, key, value, as_heads(state.attended, options),
          state.log_sum_exp, state.seed, state.offset, /*attn_bias=*/{}, /*cum_seq_q=*/{},
          /*cum_seq_k=*/{}, options.tokens, options.tokens, /*dropout_p=*/0, /*is_causal=*/true,
          options.attention_scale);
  return at::stack({query_gradient.transpose(1, 2), key_gradient.transpose(1, 2),
                    value_gradient.transpose(1, 2)},
                   2)
      .view({gradient.size(0), 3 * gradient.size(1)});
}

}  // namespace

at::Tensor fused_block_forward(Gemm& gemm, const at::Tensor& x, const FusedBlockWeights& weights,
                               const FusedBlockOptions& options, FusedBlockState& state) {
  state.x = x;
  state.normed_1 =
      norm(x, weights.ln_1, weights.ln_1_bias, options.epsilon, state.mean_1, state.rstd_1);
  state.qkv = linear(gemm, state.normed_1, weights.qkv, weights.qkv_bias);
  state.attended = attend(options, state);
  state.middle = linear(gemm, state.attended, weights.projection, weights.projection_bias, x);
  state.normed_2 = norm(state.middle, weights.ln_2, weights.ln_2_bias, options.epsilon,
                        state.mean_2, state.rstd_2);
  state.before_gelu = empty_rows(x, weights.up.size(1));
  state.after_gelu =
      linear(gemm, state.normed_2, weights.up, weights.up_bias, {}, state.before_gelu);
  return linear(gemm, state.after_gelu, weights.down, weights.down_bias, state.middle);
}

FusedBlockGradients fused_block_backward(Gemm& gemm, const at::Tensor& gradient,
                                         const FusedBlockWeights& weights,
                                         const FusedBlockOptions& options,
                                         const FusedBlockState& state) {
  const at::Tensor up = linear_input_gradient(gemm, gradient, weights.down, state.before_gelu);
  const at::Tensor down_weight = linear_weight_gradient(gemm, state.after_gelu, gradient);
  const at::Tensor normed_2 = linear_input_gradient(gemm, up, weights.up);
  const at::Tensor up_weight = linear_weight_gradient(gemm, state.normed_2, up);
  const NormGradients middle = norm_gradients(normed_2, state.middle, weights.ln_2, state.mean_2,
                                              state.rstd_2, gradient, /*wants_bias=*/true);
  const at::Tensor attended = linear_input_gradient(gemm, middle.x, weights.projection);
  const at::Tensor projection_weight = linear_weight_gradient(gemm, state.attended, middle.x);
  const at::Tensor qkv = attention_gradient(attended, options, state);
  const at::Tensor normed_1 = linear_input_gradient(gemm, qkv, weights.qkv);
  const at::Tensor qkv_weight = linear_weight_gradient(gemm, state.normed_1, qkv);
  const NormGradients first = norm_gradients(normed_1, state.x, weights.ln_1, state.mean_1,
                                             state.rstd_1, middle.x, /*wants_bias=*/false);
  return {.x = first.x,
          .of_weights = {first.gamma, first.beta, qkv_weight, bias_gradient(qkv), projection_weight,
                         middle.bias, middle.gamma, middle.beta, up_weight, bias_gradient(up),
                         down_weight, bias_gradient(gradient)}};
}

}  // namespace lockstep
