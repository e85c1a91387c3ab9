#include "models/gpt2_block.h"

#include <mutex>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/autocast.h"
#include "lockstep/error.h"
#include "models/cpu_functions.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor normalise(const at::Tensor& x, const WeightAndBias& weights, double epsilon) {
  return at::layer_norm(x, {x.size(-1)}, weights.weight, weights.bias, epsilon);
}

at::Tensor drop(const at::Tensor& x, double probability) {
  return probability > 0 ? at::dropout(x, probability, /*train=*/true) : x;
}

at::Tensor activate(const at::Tensor& x, Gpt2Activation activation) {
  switch (activation) {
    case Gpt2Activation::gelu_tanh:
      return can_fuse_gelu(x) ? fused_gelu_tanh(x) : at::gelu(x, "tanh");
    case Gpt2Activation::gelu:
      return at::gelu(x, "none");
    case Gpt2Activation::relu:
      return at::relu(x);
    case Gpt2Activation::silu:
      return at::silu(x);
    case Gpt2Activation::tanh:
      return at::tanh(x);
  }
  LOCKSTEP_CHECK(false, "activation ", static_cast<int>(activation));
  return x;
}

// Writes the new keys and values into the cache and looks at everything that it holds.
at::Tensor cached_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const BlockOptions& options, const CachedAttention& cached) {
  const auto index = cached.positions.unsqueeze(1).unsqueeze(-1).expand(
      {key.size(0), key.size(1), key.size(2), key.size(3)});
  cached.layer->keys.scatter_(2, index, key.to(cached.layer->keys.scalar_type()));
  cached.layer->values.scatter_(2, index, value.to(cached.layer->values.scalar_type()));
  const at::Tensor keys = cached.layer->keys.narrow(2, 0, cached.span);
  const at::Tensor values = cached.layer->values.narrow(2, 0, cached.span);
  return at::scaled_dot_product_attention(
      query, keys.to(query.scalar_type()), values.to(query.scalar_type()), cached.mask,
      /*dropout_p=*/0, /*is_causal=*/false, options.attention_scale);
}

at::Tensor attention(const at::Tensor& x, const BlockWeights& weights, const BlockOptions& options,
                     const CachedAttention* cached) {
  const std::int64_t batch = x.size(0), tokens = x.size(1), width = x.size(2);
  const at::Tensor qkv = conv1d(x, weights.c_attn);
  if (cached == nullptr && can_fuse_attention(qkv, options.heads)) {
    return conv1d(fused_causal_attention(qkv, {.heads = options.heads,
                                               .scale = options.attention_scale,
                                               .dropout = options.attention_dropout}),
                  weights.attn_proj);
  }
  const std::vector<at::Tensor> parts =
      qkv.view({batch, tokens, 3, options.heads, width / options.heads}).unbind(2);
  const at::Tensor query = parts[0].transpose(1, 2);  // [B, heads, T, head size]
  const at::Tensor key = parts[1].transpose(1, 2);
  const at::Tensor value = parts[2].transpose(1, 2);
  const at::Tensor mixed = cached != nullptr
                               ? cached_attention(query, key, value, options, *cached)
                               : at::scaled_dot_product_attention(
                                     query, key, value, /*attn_mask=*/{}, options.attention_dropout,
                                     /*is_causal=*/true, options.attention_scale);
  return conv1d(mixed.transpose(1, 2).reshape({batch, tokens, width}), weights.attn_proj);
}

// The default generators as they are at a point of the forward, and a way back to it.
class RandomPoint {
 public:
  explicit RandomPoint(c10::Device device) {
    generators_.push_back(at::detail::getDefaultCPUGenerator());
    if (!device.is_cpu()) generators_.push_back(at::globalContext().defaultGenerator(device));
    states_ = current();
  }

  std::vector<at::Tensor> current() {
    std::vector<at::Tensor> states;
    for (at::Generator& generator : generators_) {
      const std::lock_guard lock(generator.mutex());
      states.push_back(generator.get_state());
    }
    return states;
  }

  void set(const std::vector<at::Tensor>& states) {
    for (std::size_t i = 0; i < generators_.size(); ++i) {
      const std::lock_guard lock(generators_[i].mutex());
      generators_[i].set_state(states[i]);
    }
  }

  // While it lives, random numbers are those that followed the point.
  class [[nodiscard]] Replay {
   public:
    explicit Replay(RandomPoint& point) : point_(point), before_(point.current()) {
      point_.set(point_.states_);
    }
    Replay(const Replay&) = delete;
    Replay& operator=(const Replay&) = delete;
    ~Replay() { point_.set(before_); }

   private:
    RandomPoint& point_;
    std::vector<at::Tensor> before_;
  };

 private:
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
};

// What backward needs to know beside tensors.
struct Recipe : torch::CustomClassHolder {
  BlockOptions options;
  std::optional<at::ScalarType> autocast;
  std::optional<RandomPoint> random;
};

struct CheckpointedBlock : torch::autograd::Function<CheckpointedBlock> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::TensorList& weights,
                            const c10::intrusive_ptr<Recipe>& recipe) {
    if (recipe->options.attention_dropout > 0 || recipe->options.residual_dropout > 0) {
      recipe->random.emplace(x.device());
    }
    variable_list saved = {x};
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["recipe"] = c10::IValue::make_capsule(recipe);
    return block_forward(x, BlockWeights::from(weights), recipe->options);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto& recipe = static_cast<Recipe&>(*context->saved_data["recipe"].toCapsule());
    variable_list inputs, wanted;
    for (const at::Tensor& saved : context->get_saved_variables()) {
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
      if (saved.requires_grad()) wanted.push_back(inputs.back());
    }
    const at::AutoGradMode with_graph(true);
    std::optional<RandomPoint::Replay> replay;
    if (recipe.random) replay.emplace(*recipe.random);
    at::Tensor output;
    {
      std::optional<Autocast> autocast;
      if (recipe.autocast) {
        autocast.emplace(
            AutocastOptions{.device_type = inputs[0].device().type(), .dtype = *recipe.autocast});
      }
      output = block_forward(inputs[0], BlockWeights::from(at::TensorList(inputs).slice(1)),
                             recipe.options);
    }
    // grad(), not backward(): what it finds goes to the engine that called, which adds it to the
    // parameters' gradients as it does for any other function. So DistributedDataParallel sees it.
    const variable_list found = torch::autograd::grad({output}, wanted, gradients);
    variable_list result(inputs.size() + 1);
    std::size_t next = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].requires_grad()) result[i] = found[next++];
    }
    return result;
  }
};

}  // namespace

std::array<at::Tensor, BlockWeights::kCount> BlockWeights::list() const {
  return {ln_1.weight, ln_1.bias, c_attn.weight, c_attn.bias, attn_proj.weight, attn_proj.bias,
          ln_2.weight, ln_2.bias, c_fc.weight,   c_fc.bias,   mlp_proj.weight,  mlp_proj.bias};
}

BlockWeights BlockWeights::from(at::TensorList list) {
  LOCKSTEP_CHECK(list.size() == kCount, list.size());
  return {.ln_1 = {list[0], list[1]},
          .c_attn = {list[2], list[3]},
          .attn_proj = {list[4], list[5]},
          .ln_2 = {list[6], list[7]},
          .c_fc = {list[8], list[9]},
          .mlp_proj = {list[10], list[11]}};
}

at::Tensor conv1d(const at::Tensor& x, const WeightAndBias& weights) {
  auto sizes = x.sizes().vec();
  sizes.back() = weights.weight.size(1);
  return at::addmm(weights.bias, x.reshape({-1, x.size(-1)}), weights.weight).view(sizes);
}

at::Tensor block_forward(const at::Tensor& x, const BlockWeights& weights,
                         const BlockOptions& options, const CachedAttention* cached) {
  const at::Tensor normed = normalise(x, weights.ln_1, options.epsilon);
  const at::Tensor attended =
      at::add(drop(attention(normed, weights, options, cached), options.residual_dropout), x);
  const at::Tensor inner = activate(
      conv1d(normalise(attended, weights.ln_2, options.epsilon), weights.c_fc), options.activation);
  return at::add(attended, drop(conv1d(inner, weights.mlp_proj), options.residual_dropout));
}

at::Tensor checkpointed_block_forward(const at::Tensor& x, const BlockWeights& weights,
                                      const BlockOptions& options,
                                      std::optional<at::ScalarType> autocast) {
  auto recipe = c10::make_intrusive<Recipe>();
  recipe->options = options;
  recipe->autocast = autocast;
  const auto list = weights.list();
  return CheckpointedBlock::apply(x, at::TensorList(list), recipe);
}

}  // namespace lockstep
