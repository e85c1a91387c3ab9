#include "models/fused_block.h"

#include <tuple>

#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

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

kernels::AttentionShape attention_shape(const FusedBlockOptions& options, std::int64_t width) {
  return {.batch = options.batch,
          .tokens = options.tokens,
          .heads = options.heads,
          .head_size = width / options.heads,
          .scale = static_cast<float>(options.attention_scale)};
}

at::Tensor bytes_beside(const at::Tensor& like, std::int64_t count) {
  return at::empty({count}, like.options().dtype(at::kByte));
}

// cuDNN as ATen calls it: for builds without cuDNN's headers.
at::Tensor attend_through_aten(const FusedBlockOptions& options, FusedBlockState& state) {
  const auto [query, key, value] = heads_of(state.qkv, options);
  const auto result = at::_scaled_dot_product_cudnn_attention(
      query, key, value, /*attn_bias=*/{}, /*compute_log_sumexp=*/true, /*dropout_p=*/0,
      /*is_causal=*/true, /*return_debug_mask=*/false, options.attention_scale);
  state.log_sum_exp = std::get<1>(result);
  state.seed = std::get<6>(result);
  state.offset = std::get<7>(result);
  const at::Tensor& heads = std::get<0>(result);
  return heads.transpose(1, 2).reshape(state.x.sizes());
}

at::Tensor attend(kernels::Attention& attention, const FusedBlockOptions& options,
                  FusedBlockState& state) {
  const kernels::AttentionShape shape = attention_shape(options, state.x.size(1));
  if (!attention.takes(shape)) return attend_through_aten(options, state);
  const at::Tensor out = at::empty_like(state.x);
  state.log_sum_exp = fused::empty_floats(state.x, {shape.batch, shape.heads, shape.tokens});
  const at::Tensor scratch = bytes_beside(out, attention.forward_scratch(shape));
  attention.forward(shape,
                    {.qkv = fused::bits(state.qkv),
                     .out = fused::bits(out),
                     .log_sum_exp = fused::floats(state.log_sum_exp)},
                    scratch.data_ptr(), fused::stream());
  return out;
}

fused::Summed attention_gradient_through_aten(const at::Tensor& gradient,
                                              const FusedBlockOptions& options,
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

// Through the projection of what attention gave, and attention itself, to queries, keys and values.
// Their sums may be left to be done.
fused::Summed attention_gradient(FusedLibraries& libraries, const fused::NormGradients& middle,
                                 const FusedBlockWeights& weights, const FusedBlockOptions& options,
                                 const FusedBlockState& state) {
  const at::Tensor gradient =
      fused::linear_input_gradient(libraries.gemm, middle.x, weights.projection);
  const kernels::AttentionShape shape = attention_shape(options, gradient.size(1));
  if (!libraries.attention.takes(shape)) {
    return attention_gradient_through_aten(gradient, options, state);
  }
  const at::Tensor rows = at::empty_like(state.qkv);
  const at::Tensor scratch = bytes_beside(rows, libraries.attention.backward_scratch(shape));
  libraries.attention.backward(shape,
                               {.qkv = fused::bits(state.qkv),
                                .out = fused::bits(state.attended),
                                .log_sum_exp = fused::floats(state.log_sum_exp),
                                .gradient = fused::bits(gradient),
                                .qkv_gradient = fused::bits(rows)},
                               scratch.data_ptr(), fused::stream());
  return {.rows = rows, .sums = {}};
}

// All of forward but its last product, whose result no gradient needs.
void forward_to_gelu(FusedLibraries& libraries, const at::Tensor& x,
                     const FusedBlockWeights& weights, const FusedBlockOptions& options,
                     FusedBlockState& state) {
  Gemm& gemm = libraries.gemm;
  state.x = x;
  state.normed_1 =
      fused::norm(x, weights.ln_1, weights.ln_1_bias, options.epsilon, state.mean_1, state.rstd_1);
  state.qkv = fused::linear(gemm, state.normed_1, weights.qkv, weights.qkv_bias);
  state.attended = attend(libraries.attention, options, state);
  state.middle =
      fused::linear(gemm, state.attended, weights.projection, weights.projection_bias, x);
  state.normed_2 = fused::norm(state.middle, weights.ln_2, weights.ln_2_bias, options.epsilon,
                               state.mean_2, state.rstd_2);
  state.gelu = fused::linear_gelu(gemm, state.normed_2, weights.up, weights.up_bias);
}

}  // namespace

at::Tensor fused_block_forward(FusedLibraries& libraries, const at::Tensor& x,
                               const FusedBlockWeights& weights, const FusedBlockOptions& options,
                               FusedBlockState& state) {
  forward_to_gelu(libraries, x, weights, options, state);
  const at::Tensor out =
      fused::linear(libraries.gemm, state.gelu.out, weights.down, weights.down_bias, state.middle);
  if (options.recompute) {
    state = FusedBlockState();
    state.x = x;
  }
  return out;
}

FusedBlockGradients fused_block_backward(FusedLibraries& libraries, const FusedUpstream& upstream,
                                         const FusedBlockWeights& weights,
                                         const FusedBlockOptions& options, FusedBlockState& state) {
  Gemm& gemm = libraries.gemm;
  // Many rows keep the device busy; there a second stream would only take memory of its own.
  constexpr std::int64_t kMostRowsBeside = 8192;
  const bool has_side = upstream.gradient.size(0) <= kMostRowsBeside;
  const auto beside = [&](const auto& work) {
    return has_side ? libraries.side.run(work) : work();
  };
  if (options.recompute) forward_to_gelu(libraries, state.x, weights, options, state);
  const auto weight_gradient = [&](const at::Tensor& input, const at::Tensor& output) {
    return beside([&] { return fused::linear_weight_gradient(gemm, input, output); });
  };
  const auto bias_gradient = [&](const fused::Summed& output) {
    if (!output.sums.defined()) {
      return beside([&] { return fused::bias_gradient(output.rows); });
    }
    if (output.unfinished) beside([&] { output.unfinished->finish(); });
    return output.sums;
  };
  const at::Tensor& gradient = upstream.gradient;
  const at::Tensor down_weight = weight_gradient(state.gelu.out, gradient);
  const at::Tensor down_bias = bias_gradient({.rows = gradient, .sums = upstream.sums});
  const fused::Summed up = fused::gelu_input_gradient(gemm, gradient, weights.down, state.gelu);
  const at::Tensor up_weight = weight_gradient(state.normed_2, up.rows);
  const at::Tensor up_bias = bias_gradient(up);
  const at::Tensor normed_2 = fused::linear_input_gradient(gemm, up.rows, weights.up);
  const fused::NormGradients middle = fused::norm_gradients(normed_2, state.middle, weights.ln_2,
                                                            state.mean_2, state.rstd_2, gradient);
  beside([&] { middle.unfinished.finish(); });
  const at::Tensor projection_weight = weight_gradient(state.attended, middle.x);
  fused::Summed qkv = attention_gradient(libraries, middle, weights, options, state);
  const at::Tensor qkv_weight = weight_gradient(state.normed_1, qkv.rows);
  if (!qkv.sums.defined()) {
    qkv.sums = beside(
        [&] { return fused::attention_bias_gradient(qkv.rows, middle.bias, weights.projection); });
  }
  const at::Tensor normed_1 = fused::linear_input_gradient(gemm, qkv.rows, weights.qkv);
  const fused::NormGradients first =
      fused::norm_gradients(normed_1, state.x, weights.ln_1, state.mean_1, state.rstd_1, middle.x);
  beside([&] { first.unfinished.finish(); });
  libraries.side.join();
  return {
      .x = {.gradient = first.x, .sums = first.bias},
      .of_weights = {first.gamma, first.beta, qkv_weight, qkv.sums, projection_weight, middle.bias,
                     middle.gamma, middle.beta, up_weight, up_bias, down_weight, down_bias}};
}

}  // namespace lockstep
