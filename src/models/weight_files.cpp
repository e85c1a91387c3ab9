#include "models/weight_files.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/durable_file.h"
#include "lockstep/error.h"
#include "lockstep/torch_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

json read_index(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw_errno(concat("cannot read '", path, "'"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  json index = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw InvalidArgument(concat("'", path, "' is no index of shards: it has no \"weight_map\""));
  }
  return index;
}

WeightFiles shards_of(const std::string& directory, const std::string& index_path) {
  std::set<std::string> names;
  const json index = read_index(index_path);
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    // An index is data from elsewhere: it must not lead out of its folder.
    if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos) {
      throw InvalidArgument(concat("'", index_path, "': the file of '", tensor, "' is ",
                                   file.dump(), "; it must be the name of a file beside it"));
    }
    names.insert(file.get<std::string>());
  }
  WeightFiles files{.source = index_path, .files = {}};
  for (const std::string& name : names) {
    files.files.push_back(in_folder(directory, name));
    if (!exists(files.files.back())) {
      throw InvalidArgument(concat("'", files.files.back(), "' is missing; '", index_path,
                                   "' names it: fetch the shard again"));
    }
  }
  return files;
}

// Which tensors go into which shard, in the order of their names.
std::vector<std::map<std::string, at::Tensor>> split(
    const std::map<std::string, at::Tensor>& tensors, std::int64_t max_bytes) {
  std::vector<std::map<std::string, at::Tensor>> shards(1);
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto size = static_cast<std::int64_t>(tensor.nbytes());
    if (!shards.back().empty() && bytes + size > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back()[name] = tensor;
    bytes += size;
  }
  return shards;
}

std::string shard_name(std::size_t number, std::size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", number, count);
  return name;
}

void remove_file(const std::string& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) throw SystemError(concat("cannot remove '", path, "': ", error.message()));
}

void remove_other_shards(const std::string& directory, const std::set<std::string>& keep) {
  static const std::regex shard(R"(model-\d{5}-of-\d{5}\.safetensors)");
  std::error_code error;
  std::vector<std::string> old;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (std::regex_match(name, shard) && !keep.contains(name)) old.push_back(entry.path());
  }
  for (const std::string& path : old) remove_file(path);
}

}  // namespace

std::string in_folder(const std::string& directory, const std::string& name) {
  return (fs::path(directory) / name).string();
}

WeightFiles find_weight_files(const std::string& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    throw InvalidArgument(concat("'", directory,
                                 "' is no folder; a model is one with config.json and "
                                 "model.safetensors in it"));
  }
  for (const char* name : {kSingle, kIndex, "pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    const std::string path = in_folder(directory, name);
    if (!exists(path)) continue;
    return path.ends_with(".json") ? shards_of(directory, path)
                                   : WeightFiles{.source = path, .files = {path}};
  }
  throw InvalidArgument(concat("'", directory,
                               "' has no weights: neither model.safetensors nor pytorch_model.bin, "
                               "nor an index of shards"));
}

std::map<std::string, at::Tensor> read_weights(const std::string& file) {
  if (file.ends_with(".safetensors")) return load_safetensors(file);
  const PyValue content = load_pt(file);
  try {
    return content.to_state().tensors;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("'", file, "' holds no state_dict: ", error.what()));
  }
}

void write_weights(const std::string& directory, const std::map<std::string, at::Tensor>& tensors,
                   std::int64_t max_shard_bytes) {
  const auto shards = split(tensors, max_shard_bytes);
  const std::string single = in_folder(directory, kSingle);
  const std::string index_path = in_folder(directory, kIndex);
  if (shards.size() == 1) {
    save_safetensors(single, tensors);  // from now on it is this one that is read
    remove_file(index_path);
    return remove_other_shards(directory, {});
  }
  json index = {{"metadata", json::object()}, {"weight_map", json::object()}};
  std::set<std::string> names;
  std::int64_t bytes = 0, count = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(i + 1, shards.size());
    save_safetensors(in_folder(directory, name), shards[i]);
    names.insert(name);
    for (const auto& [tensor_name, tensor] : shards[i]) {
      index["weight_map"][tensor_name] = name;
      bytes += static_cast<std::int64_t>(tensor.nbytes());
      count += tensor.numel();
    }
  }
  index["metadata"] = {{"total_parameters", count}, {"total_size", bytes}};
  write_durably(index_path, index.dump(2) + "\n");
  remove_file(single);
  remove_other_shards(directory, names);
}

}  // namespace lockstep
