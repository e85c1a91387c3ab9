#include "model_setup.h"

#include <algorithm>
#include <filesystem>

#include "hub.h"
#include "lockstep/environment.h"
#include "lockstep/error.h"

namespace train_llm {
namespace {

using lockstep::concat;
using lockstep::Gpt2;
using lockstep::Gpt2Config;
using lockstep::InvalidArgument;

lockstep::Gpt2Options gpt2_options(const Options& options) {
  return {.activation_checkpointing = options.activation_checkpointing,
          .seed = static_cast<std::uint64_t>(options.seed),
          .deferred = options.defer_init};
}

Gpt2Config named_config(const std::string& name) {
  if (name.empty()) return Gpt2Config::named("tiny");
  const bool is_file = name.ends_with(".json") || name.find('/') != std::string::npos;
  try {
    return is_file ? Gpt2Config::from_file(name) : Gpt2Config::named(name);
  } catch (const lockstep::Error& error) {
    throw InvalidArgument(concat("--model: ", error.what()));
  }
}

void set_dropouts(Gpt2Config& config, double dropout) {
  if (dropout < 0) return;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = dropout;
}

}  // namespace

std::string model_directory(const Options& options) {
  if (options.model_name.empty()) return {};
  const std::string directory =
      find_local(HubKind::model, options.model_name, lockstep::Environment::of_process());
  if (!std::filesystem::is_directory(directory)) {
    throw InvalidArgument(concat("--model-name is \"", directory,
                                 "\", a file; it must be the directory with config.json"));
  }
  return directory;
}

Gpt2Config model_config(const Options& options, std::int64_t tokenizer_size) {
  const bool loads = !options.model_name.empty();
  Gpt2Config config = loads ? Gpt2Config::from_file(model_directory(options) + "/config.json")
                            : named_config(options.model);
  const bool reshapes = options.n_layer != 0 || options.n_embd != 0 || options.n_head != 0;
  if (loads && reshapes) {
    throw InvalidArgument(
        "--n-layer, --n-embd and --n-head change the shape of a --model; that of --model-name is "
        "what it is");
  }
  if (options.n_layer != 0) config.n_layer = options.n_layer;
  if (options.n_embd != 0) config.n_embd = options.n_embd;
  if (options.n_head != 0) config.n_head = options.n_head;
  set_dropouts(config, options.dropout);
  if (loads) {
    config.vocab_size = std::max(config.vocab_size, tokenizer_size);
  } else {
    config.vocab_size = tokenizer_size;
  }
  config.check(loads ? "--model-name" : "--model");
  return config;
}

Gpt2 make_model(const Options& options, const lockstep::Tokenizer& tokenizer) {
  Gpt2Config config = model_config(options, tokenizer.size());
  const auto end = tokenizer.end_of_text();
  if (options.model_name.empty() || options.from_scratch) {
    if (end) config.bos_token_id = config.eos_token_id = *end;
    return Gpt2(config, gpt2_options(options));
  }
  Gpt2 model = lockstep::load_gpt2(model_directory(options), gpt2_options(options));
  if (model->config().vocab_size < config.vocab_size) {
    model->resize_token_embeddings(config.vocab_size);
  }
  if (options.dropout >= 0) model->set_dropout(options.dropout);
  return model;
}

double flops_per_token(const Gpt2Config& config, std::int64_t seq_length) {
  const std::int64_t in_products = config.parameter_count() - config.n_positions * config.n_embd;
  return 6.0 * static_cast<double>(in_products) +
         12.0 * static_cast<double>(config.n_layer * config.n_embd * seq_length);
}

}  // namespace train_llm
