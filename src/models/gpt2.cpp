#include "lockstep/gpt2.h"

#include <cmath>
#include <cstdio>
#include <map>
#include <ostream>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/CPUGeneratorImpl.h>

#include "lockstep/error.h"
#include "lockstep/unit.h"
#include "models/fused_gpt2.h"
#include "models/gpt2_parts.h"
#include "models/gpt2_weights.h"
#include "models/linear_cross_entropy.h"

namespace lockstep {
namespace {

// A node of the tree of names.
struct Node : torch::nn::Module {
  explicit Node(bool deferred) : memory(deferred ? at::kMeta : at::kCPU) {}
  const at::TensorOptions memory;

  template <typename... Sizes>
  WeightAndBias add(Sizes... weight_sizes) {
    WeightAndBias tensors{
        .weight = register_parameter("weight", at::empty({weight_sizes...}, memory)), .bias = {}};
    return tensors;
  }

  WeightAndBias add_with_bias(at::IntArrayRef weight_sizes) {
    return {.weight = register_parameter("weight", at::empty(weight_sizes, memory)),
            .bias = register_parameter("bias", at::empty({weight_sizes.back()}, memory))};
  }

  std::shared_ptr<Node> child(const std::string& name) {
    return register_module(name, std::make_shared<Node>(memory.device().is_meta()));
  }
};

BlockWeights add_block(Node& block, const Gpt2Config& config) {
  const std::int64_t width = config.n_embd;
  BlockWeights weights;
  weights.ln_1 = block.child("ln_1")->add_with_bias({width});
  const auto attention = block.child("attn");
  weights.c_attn = attention->child("c_attn")->add_with_bias({width, 3 * width});
  weights.attn_proj = attention->child("c_proj")->add_with_bias({width, width});
  weights.ln_2 = block.child("ln_2")->add_with_bias({width});
  const auto mlp = block.child("mlp");
  weights.c_fc = mlp->child("c_fc")->add_with_bias({width, config.inner()});
  weights.mlp_proj = mlp->child("c_proj")->add_with_bias({config.inner(), width});
  return weights;
}

// Set where operators on this device run under autocast.
std::optional<at::ScalarType> autocast_type(c10::Device device) {
  if (!at::autocast::is_autocast_enabled(device.type())) return std::nullopt;
  return at::autocast::get_autocast_dtype(device.type());
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void begin_with(const at::Tensor& tensor, double deviation, double value,
                const at::Generator& generator) {
  if (deviation > 0) {
    tensor.normal_(0, deviation, generator);
  } else {
    tensor.fill_(value);
  }
}

// On a CPU a chunk should stay in its caches; a device gains from large products.
std::int64_t chunk_bytes(c10::Device device) {
  return std::int64_t{device.is_cpu() ? 8 : 1024} << 20;
}

}  // namespace

Gpt2Impl::Gpt2Impl(const Gpt2Config& config, const Gpt2Options& options, Uninitialised)
    : torch::nn::Module("Gpt2"),
      config_(config),
      options_(options),
      weights_(std::make_shared<Gpt2Weights>()) {
  config_.check();
  if (options_.pad_vocab_to_multiple_of < 1) {
    throw InvalidArgument(concat("Gpt2: pad_vocab_to_multiple_of is ",
                                 options_.pad_vocab_to_multiple_of, "; it must be at least 1"));
  }
  const auto child = [this](const char* name) {
    return register_module(name, std::make_shared<Node>(options_.deferred));
  };
  weights_->wte = child("wte")->add(config_.vocab_size, config_.n_embd).weight;
  weights_->wpe = child("wpe")->add(config_.n_positions, config_.n_embd).weight;
  const auto blocks = child("h");
  for (std::int64_t i = 0; i < config_.n_layer; ++i) {
    weights_->blocks.push_back(add_block(*blocks->child(std::to_string(i)), config_));
  }
  weights_->ln_f = child("ln_f")->add_with_bias({config_.n_embd});
  if (!config_.tie_word_embeddings) {
    weights_->lm_head = child("lm_head")->add(config_.vocab_size, config_.n_embd).weight;
  }
}

Gpt2Impl::Gpt2Impl(const Gpt2Config& config, const Gpt2Options& options)
    : Gpt2Impl(config, options, Uninitialised{}) {
  if (!options.deferred) initialise();
}

std::shared_ptr<Gpt2Impl> make_uninitialised_gpt2(const Gpt2Config& config,
                                                  const Gpt2Options& options) {
  return std::shared_ptr<Gpt2Impl>(new Gpt2Impl(config, options, Gpt2Impl::Uninitialised{}));
}

// Every weight is normal, those that write into the residual stream narrower, since 2 * n_layer of
// them are added up. In the order in which random numbers are drawn.
std::vector<Gpt2Impl::Beginning> Gpt2Impl::beginnings() const {
  const double range = config_.initializer_range;
  const double narrow = range / std::sqrt(2.0 * static_cast<double>(config_.n_layer));
  std::vector<Beginning> list = {{weights_->wte, range}, {weights_->wpe, range}};
  for (const BlockWeights& block : weights_->blocks) {
    list.push_back({block.c_attn.weight, range});
    list.push_back({block.attn_proj.weight, narrow});
    list.push_back({block.c_fc.weight, range});
    list.push_back({block.mlp_proj.weight, narrow});
    for (const WeightAndBias* norm : {&block.ln_1, &block.ln_2}) {
      list.push_back({norm->weight, 0, 1});
    }
    for (const WeightAndBias* part : {&block.ln_1, &block.c_attn, &block.attn_proj, &block.ln_2,
                                      &block.c_fc, &block.mlp_proj}) {
      list.push_back({part->bias});
    }
  }
  list.push_back({weights_->ln_f.weight, 0, 1});
  list.push_back({weights_->ln_f.bias});
  if (weights_->lm_head.defined()) list.push_back({weights_->lm_head, range});
  return list;
}

void Gpt2Impl::initialise() {
  const at::NoGradGuard no_graph;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(options_.seed);
  for (const Beginning& each : beginnings())
    begin_with(each.parameter, each.deviation, each.value, generator);
}

void Gpt2Impl::make_parameters(const Take& take) const {
  if (source_) return source_(take);
  const at::NoGradGuard no_graph;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(options_.seed);
  std::map<const c10::TensorImpl*, std::string> names;
  for (const auto& item : named_parameters()) {
    names[item.value().unsafeGetTensorImpl()] = item.key();
  }
  for (const Beginning& each : beginnings()) {
    const at::Tensor value = at::empty(each.parameter.sizes(), at::kFloat);
    begin_with(value, each.deviation, each.value, generator);
    take(names.at(each.parameter.unsafeGetTensorImpl()), value);
  }
}

void Gpt2Impl::check_ids(const at::Tensor& ids, std::int64_t past) const {
  if (ids.dim() != 2 || ids.scalar_type() != at::kLong) {
    throw InvalidArgument(concat("Gpt2: ids are ", ids.scalar_type(), " of shape ", ids.sizes(),
                                 "; they must be Long of shape [batch, tokens]"));
  }
  // A device would stop at such a token by itself, with less to say, and must not be waited for.
  if (ids.is_cpu() && ids.numel() > 0) {
    const auto [smallest, largest] = ids.aminmax();
    const std::int64_t low = smallest.item<std::int64_t>(), high = largest.item<std::int64_t>();
    if (low < 0 || high >= config_.vocab_size) {
      throw InvalidArgument(concat("Gpt2: token ", low < 0 ? low : high,
                                   " is not in the vocabulary, which has ", config_.vocab_size));
    }
  }
  if (past + ids.size(1) > config_.n_positions) {
    throw InvalidArgument(concat("Gpt2: a sequence has ", past + ids.size(1),
                                 " tokens; the model's n_positions is ", config_.n_positions));
  }
}

at::Tensor Gpt2Impl::hidden_states(const at::Tensor& ids, KeyValueCache* cache) {
  std::int64_t past = 0;
  if (cache != nullptr) {
    for (const std::int64_t length : cache->lengths) past = std::max(past, length);
  }
  check_ids(ids, past);
  const bool training = is_training();
  const std::int64_t tokens = ids.size(1);
  CachedAttention cached;
  at::Tensor places;
  if (cache != nullptr) {
    cached = place_in_cache(*cache, ids);
    places = at::embedding(weights_->wpe, cached.positions);
  } else {
    places = weights_->wpe.narrow(0, 0, tokens);
  }
  at::Tensor x = at::embedding(weights_->wte, ids) + places;
  if (training && config_.embd_pdrop > 0) x = at::dropout(x, config_.embd_pdrop, /*train=*/true);

  const std::int64_t head_size = config_.n_embd / config_.n_head;
  BlockOptions options{.heads = config_.n_head,
                       .epsilon = config_.layer_norm_epsilon,
                       .activation = config_.activation,
                       .attention_dropout = training ? config_.attn_pdrop : 0,
                       .residual_dropout = training ? config_.resid_pdrop : 0};
  const bool checkpoint =
      options_.activation_checkpointing && cache == nullptr && at::GradMode::is_enabled();
  const auto block_modules = named_children()["h"]->children();
  for (std::size_t i = 0; i < weights_->blocks.size(); ++i) {
    options.attention_scale =
        config_.scale_attn_weights ? 1 / std::sqrt(static_cast<double>(head_size)) : 1;
    if (config_.scale_attn_by_inverse_layer_idx)
      options.attention_scale /= static_cast<double>(i + 1);
    const BlockWeights& block = weights_->blocks[i];
    if (cache != nullptr) cached.layer = &cache->layers.at(i);
    x = unit(*block_modules[i], x, [&](const at::Tensor& x) {
      if (checkpoint)
        return checkpointed_block_forward(x, block, options, autocast_type(x.device()));
      return block_forward(x, block, options, cache != nullptr ? &cached : nullptr);
    });
  }
  if (cache != nullptr) {
    for (std::int64_t& length : cache->lengths) length += tokens;
  }
  return at::layer_norm(x, {config_.n_embd}, weights_->ln_f.weight, weights_->ln_f.bias,
                        config_.layer_norm_epsilon);
}

at::Tensor Gpt2Impl::forward(const at::Tensor& ids) {
  const at::Tensor hidden = hidden_states(ids, nullptr);
  const std::int64_t padded = round_up(config_.vocab_size, options_.pad_vocab_to_multiple_of);
  if (padded == config_.vocab_size) return at::linear(hidden, weights_->head());
  const at::Tensor weight =
      at::constant_pad_nd(weights_->head(), {0, 0, 0, padded - config_.vocab_size});
  return at::linear(hidden, weight).narrow(-1, 0, config_.vocab_size);
}

std::string Gpt2Impl::objection_to_fused(const at::Tensor& ids) const {
  constexpr const char* kNoAutocast = "there is no Autocast to bfloat16";
  const bool autocasts = autocast_type(ids.device()) == at::kBFloat16;
  if (ForwardUnits* units = ForwardUnits::current(); units != nullptr) {
    if (!autocasts) return kNoAutocast;
    // Of all ranks or none, and so before what may differ between them.
    if (!units->gather_all()) return "its parameters are sharded";
  }
  const std::string reason = FusedGpt2::objection(config_, *weights_, ids, is_training());
  return reason.empty() && !autocasts ? kNoAutocast : reason;
}

bool Gpt2Impl::takes_fused_path(const at::Tensor& ids) {
  if (!options_.fused || !ids.is_cuda()) return false;
  const std::string reason = objection_to_fused(ids);
  if (reason.empty()) return true;
  // Where nothing is learned, speed is of less concern, and another precision may be meant.
  if (at::GradMode::is_enabled() && !std::exchange(said_why_not_fused_, true)) {
    std::fprintf(stderr,
                 "lockstep: this GPT-2 computes with ATen's operators, not the fused ones: %s\n",
                 reason.c_str());
  }
  return false;
}

Gpt2Loss Gpt2Impl::forward(const at::Tensor& ids, const at::Tensor& labels) {
  if (labels.sizes() != ids.sizes() || labels.scalar_type() != at::kLong) {
    throw InvalidArgument(concat("Gpt2: labels are ", labels.scalar_type(), " of shape ",
                                 labels.sizes(), "; they must be Long of the ids' shape ",
                                 ids.sizes()));
  }
  if (takes_fused_path(ids)) {
    check_ids(ids, /*past=*/0);
    if (!fused_) fused_ = std::make_shared<FusedGpt2>();
    return fused_->loss(config_, options_, *weights_, ids, labels);
  }
  const at::Tensor hidden = hidden_states(ids, nullptr);
  const LinearCrossEntropy loss = linear_cross_entropy(
      hidden.reshape({-1, config_.n_embd}), weights_->head(), labels.reshape({-1}),
      {.ignored_label = kIgnoredLabel,
       .padded_columns = round_up(config_.vocab_size, options_.pad_vocab_to_multiple_of),
       .compute_type = autocast_type(hidden.device()),
       .chunk_bytes = chunk_bytes(hidden.device())});
  return {.sum = loss.sum, .count = static_cast<double>(loss.count)};
}

at::Tensor Gpt2Impl::next_logits(const at::Tensor& ids, KeyValueCache& cache) {
  const at::NoGradGuard no_graph;
  const at::Tensor hidden = hidden_states(ids, &cache);
  return at::linear(hidden.select(1, hidden.size(1) - 1), weights_->head());
}

void Gpt2Impl::resize_token_embeddings(std::int64_t vocab_size) {
  if (options_.deferred) {
    throw InvalidArgument(
        "Gpt2::resize_token_embeddings: the model is deferred, and has no weights yet");
  }
  Gpt2Config resized = config_;
  resized.vocab_size = vocab_size;
  resized.check("Gpt2::resize_token_embeddings");
  const at::NoGradGuard no_graph;
  for (at::Tensor* table : {&weights_->wte, &weights_->lm_head}) {
    if (!table->defined()) continue;
    const at::Tensor old = table->detach();
    const std::int64_t kept = std::min(vocab_size, config_.vocab_size);
    at::Tensor fresh = at::empty({vocab_size, config_.n_embd}, old.options());
    fresh.narrow(0, 0, kept).copy_(old.narrow(0, 0, kept));
    if (vocab_size > kept) {
      fresh.narrow(0, kept, vocab_size - kept).copy_(old.to(at::kFloat).mean(0));
    }
    table->mutable_grad() = at::Tensor();
    table->set_data(fresh);
  }
  config_ = resized;
}

void Gpt2Impl::set_dropout(double probability) {
  Gpt2Config changed = config_;
  changed.embd_pdrop = changed.attn_pdrop = changed.resid_pdrop = probability;
  changed.check("Gpt2::set_dropout");
  config_ = changed;
}

std::shared_ptr<torch::nn::Module> Gpt2Impl::clone(const std::optional<at::Device>& device) const {
  const at::NoGradGuard no_graph;
  const auto copy = make_uninitialised_gpt2(config_, options_);
  auto targets = copy->named_parameters();
  for (const auto& item : named_parameters()) {
    at::Tensor& target = targets[item.key()];
    target.set_data(device ? item.value().to(*device, /*non_blocking=*/false, /*copy=*/true)
                           : item.value().clone());
    target.requires_grad_(item.value().requires_grad());
  }
  copy->train(is_training());
  return copy;
}

void Gpt2Impl::pretty_print(std::ostream& stream) const {
  stream << "lockstep::Gpt2(layers=" << config_.n_layer << ", heads=" << config_.n_head
         << ", width=" << config_.n_embd << ", vocabulary=" << config_.vocab_size
         << ", positions=" << config_.n_positions << ")";
}

}  // namespace lockstep
