#include "lockstep/generate.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/TensorOperators.h>

#include "lockstep/error.h"
#include "models/gpt2_parts.h"
#include "models/sample_token.h"

namespace lockstep {
namespace {

std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// In [0, 1): of the n-th token of a prompt.
double uniform_of(std::uint64_t seed, std::size_t prompt, std::size_t token) {
  return static_cast<double>(mix(mix(mix(seed) ^ prompt) ^ token) >> 11) * 0x1p-53;
}

void check_options(const GenerateOptions& options) {
  const auto fail = [](const char* name, double value, const char* rule) {
    throw InvalidArgument(concat("generate: ", name, " is ", value, "; it must be ", rule));
  };
  if (options.max_new_tokens < 0) {
    fail("max_new_tokens", static_cast<double>(options.max_new_tokens), "at least 0");
  }
  if (!(options.temperature >= 0)) fail("temperature", options.temperature, "at least 0");
  if (options.top_k < 0) fail("top_k", static_cast<double>(options.top_k), "at least 0");
  if (!(options.top_p > 0 && options.top_p <= 1)) fail("top_p", options.top_p, "in (0, 1]");
}

void check_prompts(const std::vector<std::vector<std::int32_t>>& prompts,
                   const Gpt2Config& config) {
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto size = static_cast<std::int64_t>(prompts[i].size());
    if (size == 0) throw InvalidArgument(concat("generate: prompt ", i, " has no token"));
    if (size > config.n_positions) {
      throw InvalidArgument(concat("generate: prompt ", i, " has ", size,
                                   " tokens; the model's n_positions is ", config.n_positions));
    }
    for (const std::int32_t token : prompts[i]) {
      if (token < 0 || token >= config.vocab_size) {
        throw InvalidArgument(concat("generate: prompt ", i, " has token ", token,
                                     "; the vocabulary has ", config.vocab_size));
      }
    }
  }
}

class EvaluationMode {
 public:
  explicit EvaluationMode(Gpt2Impl& model) : model_(model), before_(model.is_training()) {
    model_.eval();
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;
  ~EvaluationMode() { model_.train(before_); }

 private:
  Gpt2Impl& model_;
  bool before_;
};

at::Tensor as_row(const std::vector<std::int32_t>& tokens, c10::Device device) {
  return at::tensor(tokens, at::kLong).unsqueeze(0).to(device);
}

// Sequences that grow by a token at a time.
class Sequences {
 public:
  Sequences(Gpt2Impl& model, const std::vector<std::vector<std::int32_t>>& prompts,
            const GenerateOptions& options)
      : model_(model),
        options_(options),
        sequences_(prompts),
        results_(prompts.size()),
        device_(model.parameters().front().device()) {
    for (std::size_t i = 0; i < prompts.size(); ++i) active_.push_back(i);
  }

  std::vector<Generated> run() {
    if (options_.max_new_tokens == 0 || active_.empty()) return std::move(results_);
    options_.use_cache ? run_with_cache() : run_without_cache();
    return std::move(results_);
  }

 private:
  void run_without_cache() {
    while (!active_.empty()) {
      std::vector<at::Tensor> logits;
      for (const std::size_t i : active_) {
        logits.push_back(model_.forward(as_row(sequences_[i], device_)).select(1, -1));
      }
      choose(at::cat(logits));
    }
  }

  void run_with_cache() {
    std::int64_t longest = 0;
    for (const auto& sequence : sequences_) {
      longest = std::max(longest, static_cast<std::int64_t>(sequence.size()));
    }
    const std::int64_t capacity =
        std::min(longest + options_.max_new_tokens, model_.config().n_positions);
    // Each prompt goes in alone, so that its length is nobody else's matter.
    cache_ = make_cache(model_, static_cast<std::int64_t>(sequences_.size()), capacity);
    std::vector<at::Tensor> logits;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      KeyValueCache row = row_of(i);
      logits.push_back(model_.next_logits(as_row(sequences_[i], device_), row));
      cache_.lengths[i] = row.lengths[0];
    }
    choose(at::cat(logits));
    while (!active_.empty()) {
      std::vector<std::int64_t> last;
      for (const std::size_t i : active_) last.push_back(sequences_[i].back());
      choose(model_.next_logits(at::tensor(last, at::kLong).unsqueeze(1).to(device_), cache_));
    }
  }

  // A view of one row of the cache.
  KeyValueCache row_of(std::size_t i) const {
    KeyValueCache row;
    for (const KeyValueCache::Layer& layer : cache_.layers) {
      row.layers.push_back({layer.keys.narrow(0, static_cast<std::int64_t>(i), 1),
                            layer.values.narrow(0, static_cast<std::int64_t>(i), 1)});
    }
    row.lengths = {0};
    return row;
  }

  // One token for each active sequence; those that end are active no longer.
  void choose(const at::Tensor& device_logits) {
    const at::Tensor logits = device_logits.to(at::kCPU, at::kFloat).contiguous();
    const auto width = static_cast<std::size_t>(logits.size(1));
    std::vector<std::int64_t> kept;
    for (std::size_t row = 0; row < active_.size(); ++row) {
      const std::size_t prompt = active_[row];
      const std::span<const float> values(logits.const_data_ptr<float>() + row * width, width);
      const std::int32_t token = sample_token(
          values,
          {.temperature = options_.temperature, .top_k = options_.top_k, .top_p = options_.top_p},
          uniform_of(options_.seed, prompt, results_[prompt].tokens.size()));
      if (!append(prompt, token)) kept.push_back(static_cast<std::int64_t>(row));
    }
    if (kept.size() < active_.size()) keep(kept);
  }

  // Whether the sequence ends with it.
  bool append(std::size_t prompt, std::int32_t token) {
    Generated& result = results_[prompt];
    if (options_.stop_token && token == *options_.stop_token) {
      result.end = GenerateEnd::stop_token;
      return true;
    }
    result.tokens.push_back(token);
    sequences_[prompt].push_back(token);
    if (options_.on_token) options_.on_token(prompt, token);
    if (static_cast<std::int64_t>(result.tokens.size()) == options_.max_new_tokens) {
      result.end = GenerateEnd::max_new_tokens;
      return true;
    }
    if (static_cast<std::int64_t>(sequences_[prompt].size()) > model_.config().n_positions) {
      result.end = GenerateEnd::n_positions;
      return true;
    }
    return false;
  }

  void keep(const std::vector<std::int64_t>& rows) {
    std::vector<std::size_t> active;
    for (const std::int64_t row : rows) active.push_back(active_[static_cast<std::size_t>(row)]);
    active_ = std::move(active);
    if (!options_.use_cache || active_.empty()) return;
    const at::Tensor index = at::tensor(rows, at::kLong).to(device_);
    std::vector<std::int64_t> lengths;
    for (const std::int64_t row : rows) {
      lengths.push_back(cache_.lengths[static_cast<std::size_t>(row)]);
    }
    cache_.lengths = std::move(lengths);
    for (KeyValueCache::Layer& layer : cache_.layers) {
      layer.keys = layer.keys.index_select(0, index);
      layer.values = layer.values.index_select(0, index);
    }
  }

  Gpt2Impl& model_;
  const GenerateOptions& options_;
  std::vector<std::vector<std::int32_t>> sequences_;
  std::vector<Generated> results_;
  std::vector<std::size_t> active_;  // prompts that go on, in the order of the cache's rows
  c10::Device device_;
  KeyValueCache cache_;
};

}  // namespace

KeyValueCache make_cache(const Gpt2Impl& model, std::int64_t rows, std::int64_t capacity) {
  const Gpt2Config& config = model.config();
  const auto options = model.parameters().front().options().requires_grad(false);
  KeyValueCache cache;
  for (std::int64_t i = 0; i < config.n_layer; ++i) {
    // Zeros: attention multiplies what lies beyond a sequence's end by 0, and 0 * NaN is NaN.
    const auto empty = [&] {
      return at::zeros({rows, config.n_head, capacity, config.n_embd / config.n_head}, options);
    };
    cache.layers.push_back({empty(), empty()});
  }
  cache.lengths.assign(static_cast<std::size_t>(rows), 0);
  return cache;
}

CachedAttention place_in_cache(const KeyValueCache& cache, const at::Tensor& ids) {
  const std::int64_t tokens = ids.size(1);
  const std::int64_t longest = *std::max_element(cache.lengths.begin(), cache.lengths.end());
  const at::Tensor lengths = at::tensor(cache.lengths, at::kLong).to(ids.device());
  CachedAttention cached;
  cached.span = longest + tokens;
  cached.positions = lengths.unsqueeze(1) + at::arange(tokens, ids.options()).unsqueeze(0);
  const at::Tensor seen = at::arange(cached.span, ids.options());
  cached.mask = (seen <= cached.positions.unsqueeze(-1)).unsqueeze(1);
  return cached;
}

std::vector<Generated> generate(Gpt2& model, const std::vector<std::vector<std::int32_t>>& prompts,
                                const GenerateOptions& options) {
  check_options(options);
  check_prompts(prompts, model->config());
  const at::NoGradGuard no_graph;
  const EvaluationMode mode(*model);
  return Sequences(*model, prompts, options).run();
}

}  // namespace lockstep
