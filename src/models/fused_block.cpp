#include "models/fused_block.h"

#include "models/fused_ops.h"

namespace lockstep {
namespace {

using kernels::Gemm;

kernels::AttentionShape attention_shape(const FusedBlockOptions& options, std::int64_t width) {
  return {.batch = options.batch,
          .tokens = options.tokens,
          .heads = options.heads,
          .head_size = width / options.heads,
          .scale = static_cast<float>(options.attention_scale)};
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
  state.attended =
      fused::attend(libraries.attention, attention_shape(options, x.size(1)), state.qkv);
  state.middle =
      fused::linear(gemm, state.attended.out, weights.projection, weights.projection_bias, x);
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
  const at::Tensor projection_weight = weight_gradient(state.attended.out, middle.x);
  fused::Summed qkv = fused::attention_gradient(
      libraries.attention, attention_shape(options, gradient.size(1)), state.qkv, state.attended,
      fused::linear_input_gradient(gemm, middle.x, weights.projection));
  const at::Tensor qkv_weight = weight_gradient(state.normed_1, qkv.rows);
  if (!qkv.sums.defined()) {
    qkv.sums = beside(
        [&] { return fused::attention_bias_gradient(qkv, middle.bias, weights.projection); });
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
