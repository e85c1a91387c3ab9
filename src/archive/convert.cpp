#include "archive/convert.h"

#include <filesystem>
#include <map>
#include <tuple>

#include "archive/durable_output.h"
#include "archive/optimizer_dict.h"
#include "archive/safetensors.h"
#include "archive/safetensors_file.h"
#include "archive/snapshot_directory.h"
#include "archive/snapshot_writer.h"
#include "archive/state_file.h"
#include "archive/torch_archive.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

bool is_torch_name(const std::string& path) {
  return path.ends_with(".pt") || path.ends_with(".pth") || path.ends_with(".bin");
}

DictValue dict_of(const CheckpointPart& part) {
  DictValue dict{.items = {}, .ordered = true};
  for (const auto& [name, tensor] : part.tensors) dict.items.push_back({{name}, {tensor}});
  for (const auto& [name, value] : part.values.items()) {
    dict.items.push_back({{name}, value_of(value)});
  }
  return dict;
}

Value torch_value(const Checkpoint& checkpoint, const std::string& part) {
  // One part alone is a state_dict by itself.
  if (!part.empty() || checkpoint.kind == Checkpoint::Kind::safetensors) {
    const CheckpointPart& chosen = choose_part(checkpoint, part);
    return {is_optimizer(chosen) ? optimizer_to_dict(chosen) : dict_of(chosen)};
  }
  DictValue dict;
  if (checkpoint.manifest) {
    const Manifest& head = *checkpoint.manifest;
    dict.items.push_back({{std::string("lockstep_snapshot")},
                          value_of({{"step", head.step},
                                    {"epoch", head.epoch},
                                    {"slots", head.slots},
                                    {"seed", head.seed},
                                    {"time", head.time}})});
  }
  for (const auto& [name, each] : checkpoint.parts) {
    dict.items.push_back({{name}, {is_optimizer(each) ? optimizer_to_dict(each) : dict_of(each)}});
  }
  return {std::move(dict)};
}

// Each tensor once: other names of it are left out, as Hugging Face's files do, or told in `tied`.
std::vector<TensorView> views_of(const CheckpointPart& part, bool strip,
                                 std::map<std::string, std::string>* tied) {
  std::vector<TensorView> views;
  std::map<std::tuple<const std::byte*, ElementType, std::vector<std::int64_t>>, std::string> seen;
  for (const auto& [name, tensor] : part.tensors) {
    const std::string shown = strip ? without_wrappers(name) : name;
    if (!tensor.bytes.empty()) {
      const auto [first, is_new] =
          seen.emplace(std::tuple(tensor.bytes.data(), tensor.type, tensor.shape), shown);
      if (!is_new) {
        if (tied != nullptr) (*tied)[shown] = first->second;
        continue;
      }
    }
    views.push_back({{.name = shown, .type = tensor.type, .shape = tensor.shape}, tensor.bytes});
  }
  return views;
}

void write_model(const Checkpoint& checkpoint, const std::string& part, const std::string& path) {
  write_safetensors_file(path, views_of(choose_part(checkpoint, part), /*strip=*/true, nullptr),
                         {{"format", "pt"}});
}

struct TensorFile {
  std::string name;
  SafetensorsLayout layout;
  std::vector<TensorView> views;
};

std::string import_snapshot(const Checkpoint& checkpoint, const std::string& directory) {
  Manifest manifest = checkpoint.manifest.value_or(Manifest{});
  const auto before = find_snapshots(directory);
  if (!before.empty() && before.front().manifest) {
    manifest.sequence = before.front().manifest->sequence;
  }
  ++manifest.sequence;
  std::map<std::string, PartValues> values;
  std::vector<TensorFile> tensor_files;
  for (const auto& [name, part] : checkpoint.parts) {
    PartValues& of_part = values[name];
    of_part.values = part.values;
    if (part.tensors.empty()) continue;
    TensorFile file{.name = name + kTensorSuffix};
    file.views = views_of(part, /*strip=*/false, &of_part.tied);
    const std::vector<TensorInfo> infos(file.views.begin(), file.views.end());
    file.layout = lay_out_safetensors(infos, {{"format", "pt"}});
    tensor_files.push_back(std::move(file));
  }
  const std::string state = format_state_file(values);
  std::vector<SnapshotFile> files;
  for (const TensorFile& file : tensor_files) {
    files.push_back({.name = file.name,
                     .bytes = file.layout.file_bytes(),
                     .produce = [&file](const SnapshotFile::Append& append) {
                       append(std::as_bytes(std::span(file.layout.header)));
                       for (const std::size_t i : file.layout.order) append(file.views[i].bytes);
                     }});
  }
  files.push_back({.name = kStateName,
                   .bytes = state.size(),
                   .produce = [&state](const SnapshotFile::Append& append) {
                     append(std::as_bytes(std::span(state)));
                   }});
  std::filesystem::create_directories(directory);
  write_snapshot(directory, manifest, files, {.keep_last = 0});
  return concat(directory, "/", snapshot_name(manifest.step));
}

}  // namespace

const CheckpointPart& choose_part(const Checkpoint& checkpoint, const std::string& part) {
  std::string known;
  std::vector<const CheckpointPart*> with_tensors;
  for (const auto& [name, each] : checkpoint.parts) {
    if (name == part) return each;
    known += concat(known.empty() ? "" : ", ", name);
    if (!each.tensors.empty() && !is_optimizer(each)) with_tensors.push_back(&each);
  }
  if (!part.empty()) {
    throw InvalidArgument(
        concat("'", checkpoint.path, "' has no part '", part, "'; it has: ", known));
  }
  const auto model = checkpoint.parts.find("model");
  if (model != checkpoint.parts.end()) return model->second;
  if (with_tensors.size() == 1) return *with_tensors.front();
  throw InvalidArgument(
      concat("say with --part which part of '", checkpoint.path, "' is meant; it has: ", known));
}

std::string convert(const Checkpoint& checkpoint, const std::string& target,
                    const std::string& part) {
  if (is_torch_name(target)) {
    write_torch_archive(target, torch_value(checkpoint, part));
    return target;
  }
  if (target.ends_with(kTensorSuffix)) {
    write_model(checkpoint, part, target);
    return target;
  }
  try {
    if (checkpoint.kind == Checkpoint::Kind::torch) return import_snapshot(checkpoint, target);
    std::filesystem::create_directories(target);
  } catch (const std::filesystem::filesystem_error& error) {
    throw SystemError(concat("cannot make '", target, "': ", error.code().message()));
  }
  const std::string path = concat(target, "/model.safetensors");
  write_model(checkpoint, part, path);
  return path;
}

}  // namespace lockstep
