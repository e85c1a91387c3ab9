#include "models/fused_block.h"

#include <tuple>

#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>

#include "models/fused_ops.h"

namespace lockstep {
namespace {

using kernels::Gemm;

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

fused::Summed attention_gradient(const at::Tensor& gradient, const FusedBlockOptions& options,
                                 const FusedBlockState& state) {
  const auto [query, key, value] = heads_of(state.qkv, options);
  const auto [query_gradient, key_gradient, value_gradient] =
      at::_scaled_dot_product_cudnn_attention_backward(
          as_heads(gradient, options), query, key, value, as_heads(state.attended, options),
          state.log_sum_exp, state.seed, state.offset, /*attn_bias=*/{}, /*cum_seq_q=*/{},
          /*cum_seq_k=*/{}, options.tokens, options.tokens, /*dropout_p=*/0, /*is_causal=*/true,
          options.attention_scale);
  const auto as_rows = [&](const at::Tensor& heads) {  // a view, as cuDNN lays them out
    return heads.transpose(1, 2).reshape(gradient.sizes());
  };
  return fused::join({as_rows(query_gradient), as_rows(key_gradient), as_rows(value_gradient)});
}

// Through the second product and the GELU before it. A product's epilogue can do the latter, which
// saves a pass over memory, where that is what takes the time.
fused::Summed inner_gradient(Gemm& gemm, const at::Tensor& gradient,
                             const FusedBlockWeights& weights, const FusedBlockState& state) {
  constexpr std::int64_t kFewRows = 16384;
  if (gradient.size(0) <= kFewRows) {
    const at::Tensor after = fused::linear_input_gradient(gemm, gradient, weights.down);
    return fused::gelu_gradient(after, state.before_gelu);
  }
  const at::Tensor before =
      fused::linear_input_gradient(gemm, gradient, weights.down, state.before_gelu);
  return {.rows = before, .sums = fused::bias_gradient(before)};
}

}  // namespace

at::Tensor fused_block_forward(Gemm& gemm, const at::Tensor& x, const FusedBlockWeights& weights,
                               const FusedBlockOptions& options, FusedBlockState& state) {
  state.x = x;
  state.normed_1 =
      fused::norm(x, weights.ln_1, weights.ln_1_bias, options.epsilon, state.mean_1, state.rstd_1);
  state.qkv = fused::linear(gemm, state.normed_1, weights.qkv, weights.qkv_bias);
  state.attended = attend(options, state);
  state.middle =
      fused::linear(gemm, state.attended, weights.projection, weights.projection_bias, x);
  state.normed_2 = fused::norm(state.middle, weights.ln_2, weights.ln_2_bias, options.epsilon,
                               state.mean_2, state.rstd_2);
  state.before_gelu = fused::empty_rows(x, weights.up.size(1));
  state.after_gelu =
      fused::linear(gemm, state.normed_2, weights.up, weights.up_bias, {}, state.before_gelu);
  return fused::linear(gemm, state.after_gelu, weights.down, weights.down_bias, state.middle);
}

FusedBlockGradients fused_block_backward(Gemm& gemm, const FusedUpstream& upstream,
                                         const FusedBlockWeights& weights,
                                         const FusedBlockOptions& options,
                                         const FusedBlockState& state) {
  const at::Tensor& gradient = upstream.gradient;
  const at::Tensor down_weight = fused::linear_weight_gradient(gemm, state.after_gelu, gradient);
  const at::Tensor down_bias =
      upstream.sums.defined() ? upstream.sums : fused::bias_gradient(gradient);
  const fused::Summed up = inner_gradient(gemm, gradient, weights, state);
  const at::Tensor up_weight = fused::linear_weight_gradient(gemm, state.normed_2, up.rows);
  const at::Tensor normed_2 = fused::linear_input_gradient(gemm, up.rows, weights.up);
  const fused::NormGradients middle = fused::norm_gradients(normed_2, state.middle, weights.ln_2,
                                                            state.mean_2, state.rstd_2, gradient);
  const at::Tensor projection_weight =
      fused::linear_weight_gradient(gemm, state.attended, middle.x);
  const at::Tensor attended = fused::linear_input_gradient(gemm, middle.x, weights.projection);
  const fused::Summed qkv = attention_gradient(attended, options, state);
  const at::Tensor qkv_weight = fused::linear_weight_gradient(gemm, state.normed_1, qkv.rows);
  const at::Tensor normed_1 = fused::linear_input_gradient(gemm, qkv.rows, weights.qkv);
  const fused::NormGradients first =
      fused::norm_gradients(normed_1, state.x, weights.ln_1, state.mean_1, state.rstd_1, middle.x);
  return {
      .x = {.gradient = first.x, .sums = first.bias},
      .of_weights = {first.gamma, first.beta, qkv_weight, qkv.sums, projection_weight, middle.bias,
                     middle.gamma, middle.beta, up_weight, up.sums, down_weight, down_bias}};
}

}  // namespace lockstep
