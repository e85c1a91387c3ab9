#include "models/cpu_functions.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <mutex>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "models/causal_attention.h"
#include "models/vector_loops.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kGrain = 1 << 14;  // numbers that are worth a thread

bool is_plain_float(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.is_contiguous();
}

struct Gelu : torch::autograd::Function<Gelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, bool with_slope) {
    const at::Tensor out = at::empty_like(x);
    const at::Tensor slope = with_slope ? at::empty_like(x) : at::Tensor();
    const auto* from = x.const_data_ptr<float>();
    auto* to = out.data_ptr<float>();
    auto* slopes = with_slope ? slope.data_ptr<float>() : nullptr;
    at::parallel_for(0, x.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      gelu_tanh(from + begin, to + begin, slopes != nullptr ? slopes + begin : nullptr,
                end - begin);
    });
    if (with_slope) context->save_for_backward({slope});
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {at::mul(gradients[0], context->get_saved_variables()[0]), at::Tensor()};
  }
};

std::uint64_t draw_seed() {
  auto& generator = *at::get_generator_or_default<at::CPUGeneratorImpl>(
      std::nullopt, at::detail::getDefaultCPUGenerator());
  const std::lock_guard lock(generator.mutex_);
  return generator.random64();
}

// Carries the shape from forward to backward.
struct ShapeHolder : torch::CustomClassHolder {
  explicit ShapeHolder(const AttentionShape& value) : shape(value) {}
  AttentionShape shape;
};

struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv,
                            const AttentionShape& shape) {
    const std::int64_t heads = shape.heads;
    const at::Tensor out = at::empty({shape.batch, shape.tokens, shape.width()}, qkv.options());
    const at::Tensor lse = at::empty({shape.batch, heads, shape.tokens}, qkv.options());
    const auto* from = qkv.const_data_ptr<float>();
    auto* to = out.data_ptr<float>();
    auto* sums = lse.data_ptr<float>();
    at::parallel_for(0, shape.batch * heads, 1, [&](std::int64_t begin, std::int64_t end) {
      causal_attention(shape, from, to, sums, begin, end);
    });
    context->save_for_backward({qkv, out, lse});
    context->saved_data["shape"] =
        c10::IValue::make_capsule(c10::make_intrusive<ShapeHolder>(shape));
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const AttentionShape& shape =
        static_cast<const ShapeHolder&>(*context->saved_data["shape"].toCapsule()).shape;
    const at::Tensor out_gradient = gradients[0].contiguous();
    const at::Tensor gradient = at::empty_like(saved[0]);
    const AttentionGradient tensors{.qkv = saved[0].const_data_ptr<float>(),
                                    .out = saved[1].const_data_ptr<float>(),
                                    .lse = saved[2].const_data_ptr<float>(),
                                    .out_gradient = out_gradient.const_data_ptr<float>(),
                                    .qkv_gradient = gradient.data_ptr<float>()};
    at::parallel_for(0, shape.batch * shape.heads, 1, [&](std::int64_t begin, std::int64_t end) {
      causal_attention_gradient(shape, tensors, begin, end);
    });
    return {gradient, at::Tensor()};
  }
};

}  // namespace

bool can_fuse_gelu(const at::Tensor& x) {
  return is_plain_float(x);
}

at::Tensor fused_gelu_tanh(const at::Tensor& x) {
  return Gelu::apply(x, at::GradMode::is_enabled() && x.requires_grad());
}

bool can_fuse_attention(const at::Tensor& qkv, std::int64_t heads) {
  return causal_attention_is_fast() && is_plain_float(qkv) &&
         qkv.size(2) / 3 / heads % kAttentionStep == 0;
}

at::Tensor fused_causal_attention(const at::Tensor& qkv, const FusedAttentionOptions& options) {
  const AttentionShape shape{.batch = qkv.size(0),
                             .tokens = qkv.size(1),
                             .heads = options.heads,
                             .head_size = qkv.size(2) / 3 / options.heads,
                             .scale = static_cast<float>(options.scale),
                             .dropout = static_cast<float>(options.dropout),
                             .seed = options.dropout > 0 ? draw_seed() : 0};
  return Attention::apply(qkv, shape);
}

}  // namespace lockstep
