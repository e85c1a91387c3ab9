#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/durable_file.h"
#include "lockstep/error.h"
#include "lockstep/gpt2.h"
#include "lockstep/torch_file.h"
#include "models/gpt2_parts.h"
#include "models/weight_files.h"
#include "snapshot/snapshot_ranges.h"

namespace lockstep {
namespace {

constexpr const char* kPrefix = "transformer.";
constexpr const char* kHead = "lm_head.weight";

std::string own_name(std::string name) {
  if (name.starts_with(kPrefix)) name.erase(0, std::string(kPrefix).size());
  return name;
}

// Old files hold the causal mask of each layer, which is no weight.
bool is_mask(const std::string& name) {
  static const std::regex mask(R"(h\.\d+\.attn\.(bias|masked_bias))");
  return std::regex_match(name, mask);
}

std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    text += concat(i == 0 ? "'" : ", '", names[i], "'");
  }
  return names.size() > kMost ? concat(text, " and ", names.size() - kMost, " more") : text;
}

// Fills a model's parameters from files, one after the other.
class Filler {
 public:
  explicit Filler(Gpt2Impl& model) : model_(model) {
    for (const auto& item : model.named_parameters()) parameters_[item.key()] = item.value();
  }

  /// What becomes of each value; by default it is copied into the parameter.
  void hand_to(DeferredModule::Take take) { hand_to_ = std::move(take); }

  void take(const std::string& file, const std::map<std::string, at::Tensor>& tensors) {
    const at::NoGradGuard no_graph;
    std::vector<std::string> unexpected;
    for (const auto& [full_name, tensor] : tensors) {
      const std::string name = own_name(full_name);
      if (is_mask(name) || (name == kHead && model_.config().tie_word_embeddings)) continue;
      const auto found = parameters_.find(name);
      if (found == parameters_.end()) {
        unexpected.push_back(full_name);
        continue;
      }
      at::Tensor& parameter = found->second;
      if (tensor.sizes() != parameter.sizes() || !tensor.is_floating_point()) {
        throw InvalidArgument(concat(
            "'", file, "': tensor '", full_name, "' is ", tensor.scalar_type(), " ", tensor.sizes(),
            "; by config.json it must be a float tensor ", parameter.sizes()));
      }
      if (!filled_.insert(name).second) {
        throw InvalidArgument(concat("'", file, "': tensor '", full_name, "' is there twice"));
      }
      if (hand_to_) {
        hand_to_(name, tensor.to(at::kFloat).contiguous());
      } else {
        parameter.copy_(tensor);
      }
    }
    if (!unexpected.empty()) {
      throw InvalidArgument(concat("'", file, "': a GPT-2 has no tensor ", list_of(unexpected)));
    }
  }

  void finish(const std::string& source) const {
    std::vector<std::string> missing;
    for (const auto& [name, parameter] : parameters_) {
      if (!filled_.contains(name)) missing.push_back(name);
    }
    if (!missing.empty()) {
      throw InvalidArgument(concat("'", source, "' lacks tensor ", list_of(missing)));
    }
  }

 private:
  Gpt2Impl& model_;
  std::map<std::string, at::Tensor> parameters_;
  std::set<std::string> filled_;
  DeferredModule::Take hand_to_;
};

// Only the file that is being read is in memory, of .safetensors only one tensor.
void fill_from(Filler& filler, const WeightFiles& files) {
  for (const std::string& file : files.files) {
    if (file.ends_with(".safetensors")) {
      for_each_safetensor(file, [&](const std::string& name, const at::Tensor& tensor) {
        filler.take(file, {{name, tensor}});
      });
    } else {
      filler.take(file, read_weights(file));
    }
  }
  filler.finish(files.source);
}

std::string type_name(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    case at::kDouble:
      return "float64";
    default:
      throw InvalidArgument(concat("save_gpt2: weights are ", type,
                                   "; they must be float32, bfloat16, float16 or float64"));
  }
}

std::map<std::string, at::Tensor> tensors_for_files(const Gpt2Impl& model) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : model.named_parameters()) {
    const std::string name = item.key() == kHead ? item.key() : kPrefix + item.key();
    tensors[name] = item.value().detach();
  }
  return tensors;
}

std::string generation_config(const Gpt2Config& config) {
  nlohmann::ordered_json object = {{"_from_model_config", true}};
  if (config.bos_token_id) object["bos_token_id"] = *config.bos_token_id;
  if (config.eos_token_id) object["eos_token_id"] = *config.eos_token_id;
  return object.dump(2) + "\n";
}

}  // namespace

Gpt2 load_gpt2(const std::string& directory, const Gpt2Options& options) {
  const WeightFiles files = find_weight_files(directory);
  const Gpt2Config config = Gpt2Config::from_file(in_folder(directory, "config.json"));
  Gpt2 model(make_uninitialised_gpt2(config, options));
  if (options.deferred) {
    Gpt2Impl* impl = model.get();  // which owns the function
    impl->source_ = [impl, files](const DeferredModule::Take& take) {
      Filler filler(*impl);
      filler.hand_to(take);
      fill_from(filler, files);
    };
    return model;
  }
  Filler filler(*model);
  for (const std::string& file : files.files) filler.take(file, read_weights(file));
  filler.finish(files.source);
  return model;
}

void save_gpt2(const Gpt2& model, const std::string& directory, const Gpt2SaveOptions& options) {
  if (options.max_shard_bytes < 1) {
    throw InvalidArgument(concat("save_gpt2: max_shard_bytes is ", options.max_shard_bytes,
                                 "; it must be at least 1"));
  }
  const std::string type = type_name(model->parameters().front().scalar_type());
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    throw SystemError(concat("cannot make the folder '", directory, "': ", error.message()));
  }
  write_weights(directory, tensors_for_files(*model), options.max_shard_bytes);
  write_durably(in_folder(directory, "generation_config.json"), generation_config(model->config()));
  write_durably(in_folder(directory, "config.json"), model->config().to_json(type));
}

}  // namespace lockstep
