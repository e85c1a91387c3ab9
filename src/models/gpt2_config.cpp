#include "lockstep/gpt2_config.h"

#include <array>
#include <fstream>
#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

// The first name of each is the one that is written.
constexpr std::array<std::pair<const char*, Gpt2Activation>, 9> kActivations = {{
    {"gelu_new", Gpt2Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Gpt2Activation::gelu_tanh},
    {"gelu_fast", Gpt2Activation::gelu_tanh},
    {"gelu_accurate", Gpt2Activation::gelu_tanh},
    {"gelu", Gpt2Activation::gelu},
    {"relu", Gpt2Activation::relu},
    {"silu", Gpt2Activation::silu},
    {"swish", Gpt2Activation::silu},
    {"tanh", Gpt2Activation::tanh},
}};

const char* name_of(Gpt2Activation activation) {
  for (const auto& [name, value] : kActivations) {
    if (value == activation) return name;
  }
  LOCKSTEP_CHECK(false, "activation ", static_cast<int>(activation));
  return nullptr;
}

// Takes values out of a config.json and complains about them with the file and the key.
class Reader {
 public:
  Reader(const std::string& path, const json& object) : path_(path), object_(object) {}

  template <typename T>
  void take(const char* key, T& value) const {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) return;
    require<T>(key, *found);
    value = found->get<T>();
  }

  void take(const char* key, std::optional<std::int64_t>& value) const {
    const auto found = object_.find(key);
    if (found == object_.end()) return;
    if (found->is_null()) {
      value.reset();
      return;
    }
    require<std::int64_t>(key, *found);
    value = found->get<std::int64_t>();
  }

  void take_activation(const char* key, Gpt2Activation& activation) const {
    std::string wanted = name_of(activation);
    take(key, wanted);
    for (const auto& [name, value] : kActivations) {
      if (wanted == name) {
        activation = value;
        return;
      }
    }
    fail(key, concat("is \"", wanted, "\"; known are gelu_new, gelu, relu, silu and tanh"));
  }

  [[noreturn]] void fail(const char* key, const std::string& what) const {
    throw InvalidArgument(concat("'", path_, "': \"", key, "\" ", what));
  }

 private:
  template <typename T>
  void require(const char* key, const json& value) const {
    const bool fits = std::is_same_v<T, bool>          ? value.is_boolean()
                      : std::is_same_v<T, double>      ? value.is_number()
                      : std::is_same_v<T, std::string> ? value.is_string()
                                                       : value.is_number_integer();
    const char* wanted = std::is_same_v<T, bool>          ? "true or false"
                         : std::is_same_v<T, double>      ? "a number"
                         : std::is_same_v<T, std::string> ? "a string"
                                                          : "a whole number";
    if (!fits) fail(key, concat("is ", value.dump(), "; it must be ", wanted));
  }

  const std::string& path_;
  const json& object_;
};

json read_object(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw_errno(concat("cannot read '", path, "'"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) throw_errno(concat("cannot read '", path, "'"));
  json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) throw InvalidArgument(concat("'", path, "' is no JSON object"));
  return object;
}

void check_probability(const std::string& where, const char* name, double value) {
  if (!(value >= 0 && value < 1)) {
    throw InvalidArgument(concat(where, ": ", name, " is ", value, "; it must be in [0, 1)"));
  }
}

}  // namespace

const std::vector<std::string>& Gpt2Config::names() {
  static const std::vector<std::string> names = {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl",
                                                 "tiny"};
  return names;
}

Gpt2Config Gpt2Config::named(const std::string& name) {
  if (name == "gpt2") return {};
  if (name == "gpt2-medium") return {.n_embd = 1024, .n_layer = 24, .n_head = 16};
  if (name == "gpt2-large") return {.n_embd = 1280, .n_layer = 36, .n_head = 20};
  if (name == "gpt2-xl") return {.n_embd = 1600, .n_layer = 48, .n_head = 25};
  if (name == "tiny") {
    return {.vocab_size = 512,
            .n_positions = 256,
            .n_embd = 128,
            .n_layer = 4,
            .n_head = 4,
            .embd_pdrop = 0,
            .attn_pdrop = 0,
            .resid_pdrop = 0,
            .bos_token_id = std::nullopt,
            .eos_token_id = std::nullopt};
  }
  std::string known;
  for (const std::string& other : names()) known += concat(known.empty() ? "" : ", ", other);
  throw InvalidArgument(concat("no GPT-2 is called '", name, "'; known are ", known));
}

Gpt2Config Gpt2Config::from_file(const std::string& path) {
  const json object = read_object(path);
  const Reader reader(path, object);
  std::string model_type = "gpt2";
  reader.take("model_type", model_type);
  if (model_type != "gpt2") {
    reader.fail("model_type", concat("is \"", model_type, "\"; only \"gpt2\" can be read"));
  }
  bool cross_attention = false;
  reader.take("add_cross_attention", cross_attention);
  if (cross_attention) reader.fail("add_cross_attention", "is true; GPT-2 here is a decoder alone");

  Gpt2Config config;
  reader.take("vocab_size", config.vocab_size);
  reader.take("n_positions", config.n_positions);
  reader.take("n_embd", config.n_embd);
  reader.take("n_layer", config.n_layer);
  reader.take("n_head", config.n_head);
  reader.take("n_inner", config.n_inner);
  reader.take_activation("activation_function", config.activation);
  reader.take("embd_pdrop", config.embd_pdrop);
  reader.take("attn_pdrop", config.attn_pdrop);
  reader.take("resid_pdrop", config.resid_pdrop);
  reader.take("layer_norm_epsilon", config.layer_norm_epsilon);
  reader.take("initializer_range", config.initializer_range);
  reader.take("scale_attn_weights", config.scale_attn_weights);
  reader.take("scale_attn_by_inverse_layer_idx", config.scale_attn_by_inverse_layer_idx);
  reader.take("tie_word_embeddings", config.tie_word_embeddings);
  reader.take("bos_token_id", config.bos_token_id);
  reader.take("eos_token_id", config.eos_token_id);
  config.check(concat("'", path, "'"));
  return config;
}

std::string Gpt2Config::to_json(const std::string& dtype) const {
  const auto optional = [](const std::optional<std::int64_t>& value) {
    return value ? json(*value) : json();
  };
  const nlohmann::ordered_json object = {
      {"architectures", {"GPT2LMHeadModel"}},
      {"model_type", "gpt2"},
      {"vocab_size", vocab_size},
      {"n_positions", n_positions},
      {"n_ctx", n_positions},  // read by transformers before 4.0
      {"n_embd", n_embd},
      {"n_layer", n_layer},
      {"n_head", n_head},
      {"n_inner", optional(n_inner)},
      {"activation_function", name_of(activation)},
      {"embd_pdrop", embd_pdrop},
      {"attn_pdrop", attn_pdrop},
      {"resid_pdrop", resid_pdrop},
      {"layer_norm_epsilon", layer_norm_epsilon},
      {"initializer_range", initializer_range},
      {"scale_attn_weights", scale_attn_weights},
      {"scale_attn_by_inverse_layer_idx", scale_attn_by_inverse_layer_idx},
      {"tie_word_embeddings", tie_word_embeddings},
      {"bos_token_id", optional(bos_token_id)},
      {"eos_token_id", optional(eos_token_id)},
      {"dtype", dtype},
      {"torch_dtype", dtype},  // the name before transformers 4.56
  };
  return object.dump(2) + "\n";
}

void Gpt2Config::check(const std::string& where) const {
  const auto positive = [&](const char* name, std::int64_t value) {
    if (value < 1) {
      throw InvalidArgument(concat(where, ": ", name, " is ", value, "; it must be at least 1"));
    }
  };
  positive("vocab_size", vocab_size);
  positive("n_positions", n_positions);
  positive("n_embd", n_embd);
  positive("n_layer", n_layer);
  positive("n_head", n_head);
  if (n_inner) positive("n_inner", *n_inner);
  if (n_embd % n_head != 0) {
    throw InvalidArgument(concat(where, ": n_embd is ", n_embd, " and n_head is ", n_head,
                                 "; each head needs the same share"));
  }
  check_probability(where, "embd_pdrop", embd_pdrop);
  check_probability(where, "attn_pdrop", attn_pdrop);
  check_probability(where, "resid_pdrop", resid_pdrop);
  if (!(layer_norm_epsilon > 0)) {
    throw InvalidArgument(
        concat(where, ": layer_norm_epsilon is ", layer_norm_epsilon, "; it must be positive"));
  }
  if (!(initializer_range >= 0)) {
    throw InvalidArgument(
        concat(where, ": initializer_range is ", initializer_range, "; it cannot be negative"));
  }
}

std::int64_t Gpt2Config::parameter_count() const {
  const std::int64_t attention = n_embd * 3 * n_embd + 3 * n_embd + n_embd * n_embd + n_embd;
  const std::int64_t mlp = n_embd * inner() + inner() + inner() * n_embd + n_embd;
  const std::int64_t block = attention + mlp + 4 * n_embd;
  const std::int64_t heads = tie_word_embeddings ? 1 : 2;
  return heads * vocab_size * n_embd + n_positions * n_embd + n_layer * block + 2 * n_embd;
}

}  // namespace lockstep
