#include <cmath>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>

#include "lockstep/error.h"
#include "lockstep/gpt2_parts.h"
#include "models/gpt2_block.h"

namespace lockstep {
namespace {

using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

/// A part's module: a tree of the names that the model has.
struct PartModule : torch::nn::Module {
  explicit PartModule(const std::string& name) : torch::nn::Module(name) {}

  at::Tensor put(const std::string& path, const at::Tensor& tensor) {
    const std::size_t dot = path.find('.');
    if (dot == std::string::npos) {
      return register_parameter(path, tensor, tensor.requires_grad());
    }
    const std::string name = path.substr(0, dot);
    if (!named_children().contains(name)) {
      register_module(name, std::make_shared<PartModule>("Node"));
    }
    return named_children()[name]->as<PartModule>()->put(path.substr(dot + 1), tensor);
  }

  WeightAndBias put_both(const std::string& path, const NamedTensors& all,
                         const std::string& prefix) {
    return {.weight = put(path + ".weight", all[prefix + path + ".weight"]),
            .bias = put(path + ".bias", all[prefix + path + ".bias"])};
  }
};

ModelPart embedding_part(const Gpt2Config& config, const at::Tensor& wte, const at::Tensor& wpe) {
  auto module = std::make_shared<PartModule>("Gpt2Embedding");
  module->put("wte.weight", wte);
  module->put("wpe.weight", wpe);
  return model_part(module, [config, wte, wpe](PartModule& part, const Tensors& x) {
    const at::Tensor& ids = x.at(0);
    if (ids.dim() != 2 || ids.scalar_type() != at::kLong || ids.size(1) > config.n_positions) {
      throw InvalidArgument(concat("Gpt2: ids are ", ids.scalar_type(), " of shape ", ids.sizes(),
                                   "; they must be Long of shape [batch, tokens], with at most ",
                                   config.n_positions, " tokens"));
    }
    const at::Tensor y = at::embedding(wte, ids) + wpe.narrow(0, 0, ids.size(1));
    return part.is_training() && config.embd_pdrop > 0
               ? at::dropout(y, config.embd_pdrop, /*train=*/true)
               : y;
  });
}

ModelPart block_part(const Gpt2Config& config, const NamedTensors& all, std::int64_t number,
                     bool checkpointing) {
  auto module = std::make_shared<PartModule>("Gpt2Block");
  const std::string prefix = concat("h.", number, ".");
  BlockWeights weights;
  weights.ln_1 = module->put_both("ln_1", all, prefix);
  weights.c_attn = module->put_both("attn.c_attn", all, prefix);
  weights.attn_proj = module->put_both("attn.c_proj", all, prefix);
  weights.ln_2 = module->put_both("ln_2", all, prefix);
  weights.c_fc = module->put_both("mlp.c_fc", all, prefix);
  weights.mlp_proj = module->put_both("mlp.c_proj", all, prefix);
  const auto head_size = static_cast<double>(config.n_embd / config.n_head);
  BlockOptions options{.heads = config.n_head,
                       .attention_scale = config.scale_attn_weights ? 1 / std::sqrt(head_size) : 1,
                       .epsilon = config.layer_norm_epsilon,
                       .activation = config.activation};
  if (config.scale_attn_by_inverse_layer_idx) {
    options.attention_scale /= static_cast<double>(number + 1);
  }
  const auto forward = [=](PartModule& part, const Tensors& tensors) {
    const at::Tensor& x = tensors.at(0);
    BlockOptions now = options;
    if (part.is_training()) {
      now.attention_dropout = config.attn_pdrop;
      now.residual_dropout = config.resid_pdrop;
    }
    if (!checkpointing || !at::GradMode::is_enabled()) return block_forward(x, weights, now);
    const auto device = x.device().type();
    std::optional<at::ScalarType> autocast;
    if (at::autocast::is_autocast_enabled(device)) {
      autocast = at::autocast::get_autocast_dtype(device);
    }
    return checkpointed_block_forward(x, weights, now, autocast);
  };
  return model_part(module, forward);
}

ModelPart head_part(const Gpt2Config& config, const NamedTensors& all, const at::Tensor& head) {
  auto module = std::make_shared<PartModule>("Gpt2Head");
  const WeightAndBias norm = module->put_both("ln_f", all, "");
  module->put(config.tie_word_embeddings ? "wte.weight" : "lm_head.weight", head);
  return model_part(module, [config, norm, head](PartModule&, const Tensors& x) {
    const at::Tensor hidden =
        at::layer_norm(x.at(0), {config.n_embd}, norm.weight, norm.bias, config.layer_norm_epsilon);
    return at::linear(hidden, head);
  });
}

}  // namespace

Gpt2Parts gpt2_parts(const Gpt2& model) {
  const Gpt2Config config = model->config();
  const NamedTensors all = model->named_parameters();
  const bool checkpointing = model->options().activation_checkpointing;
  const auto width = static_cast<double>(config.n_embd);
  Gpt2Parts result;
  // Looking an embedding up costs next to nothing beside a block.
  result.parts.push_back(
      {.name = "embed",
       .make = [=] { return embedding_part(config, all["wte.weight"], all["wpe.weight"]); },
       .cost = width,
       .saved_as = ""});
  const double block_cost = width * (4 * width + 2 * static_cast<double>(config.inner()));
  for (std::int64_t i = 0; i < config.n_layer; ++i) {
    result.parts.push_back({.name = concat("h", i),
                            .make = [=] { return block_part(config, all, i, checkpointing); },
                            .cost = block_cost,
                            .saved_as = concat("h.", i)});
  }
  const auto head = [=] {
    const at::NoGradGuard no_grad;
    if (!config.tie_word_embeddings) return head_part(config, all, all["lm_head.weight"]);
    const at::Tensor& wte = all["wte.weight"];
    return head_part(config, all, wte.detach().clone().set_requires_grad(wte.requires_grad()));
  };
  result.parts.push_back({.name = "head",
                          .make = head,
                          .cost = width * static_cast<double>(config.vocab_size),
                          .saved_as = ""});
  if (config.tie_word_embeddings) result.ties = {{"embed.wte.weight", "head.wte.weight"}};
  return result;
}

at::Tensor gpt2_parts_loss(const Tensors& outputs, const Tensors& targets) {
  const at::Tensor& logits = outputs.at(0);
  return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}).to(at::kFloat),
                                targets.at(0).reshape({-1}), /*weight=*/{}, at::Reduction::Mean,
                                kIgnoredLabel);
}

}  // namespace lockstep
