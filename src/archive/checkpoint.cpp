#include "archive/checkpoint.h"

#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <memory>
#include <vector>

#include "archive/file_content.h"
#include "archive/optimizer_dict.h"
#include "archive/safetensors.h"
#include "archive/snapshot_directory.h"
#include "archive/state_file.h"
#include "archive/tensor_parts.h"
#include "archive/torch_archive.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kLongestState = std::size_t{1} << 30;

void add_tensors(CheckpointPart& part, const FileContent& content) {
  for (const TensorView& view : parse_safetensors(content.bytes()).tensors) {
    part.tensors[view.name] = {
        .type = view.type, .shape = view.shape, .bytes = view.bytes, .owner = content.owner()};
  }
}

// Of files that ranks have written. What lies in one piece is used there.
void add_from_ranks(CheckpointPart& part, const std::vector<FileContent>& files) {
  std::vector<SafetensorsHeader> headers;
  for (const FileContent& file : files) {
    headers.push_back(parse_safetensors_header(file.bytes(), file.bytes().size()));
  }
  for (const auto& [name, tensor] : catalogue_of(headers)) {
    TensorValue value{.type = tensor.type, .shape = tensor.shape};
    const std::uint64_t bytes = bytes_of(tensor.type, tensor.shape).value_or(0);
    const std::int64_t elements = bytes / names_of(tensor.type).bytes;
    if (tensor.stretches.size() == 1) {
      const TensorStretch& only = tensor.stretches.front();
      value.bytes = files[only.file].bytes().subspan(only.offset, bytes);
      value.owner = files[only.file].owner();
    } else {
      const auto whole = std::make_shared<std::vector<std::byte>>(bytes);
      for_each_stored(tensor, 0, elements, [&](const StoredBytes& stored) {
        std::ranges::copy(files[stored.file].bytes().subspan(stored.offset, stored.bytes),
                          whole->begin() + static_cast<std::ptrdiff_t>(stored.target));
      });
      value.bytes = *whole;
      value.owner = whole;
    }
    part.tensors[name] = std::move(value);
  }
}

Checkpoint read_snapshot_files(const FoundSnapshot& found, const CheckpointOptions& options) {
  const std::string problem = options.verify ? find_damage(found) : find_missing_files(found);
  if (!problem.empty()) throw InvalidArgument(problem);
  Checkpoint checkpoint{.path = found.path, .manifest = found.manifest};
  const std::string text = read_text_file(concat(found.path, "/", kStateName), kLongestState);
  for (auto& [name, values] : parse_state_file(text)) {
    CheckpointPart& part = checkpoint.parts[name];
    part.values = std::move(values.values);
    std::vector<FileContent> files;
    for (const std::string& file : files_of_part(*found.manifest, name)) {
      files.push_back(FileContent::map(concat(found.path, "/", file)));
    }
    add_from_ranks(part, files);
    for (const auto& [alias, target] : values.tied) {
      if (!part.tensors.contains(target))
        throw InvalidArgument(concat("'", target, "' is missing"));
      part.tensors[alias] = part.tensors[target];
    }
  }
  return checkpoint;
}

Checkpoint open_directory(const std::string& path, const CheckpointOptions& options) {
  if (::access(concat(path, "/", kManifestName).c_str(), F_OK) == 0) {
    return read_snapshot_files(open_snapshot(path), options);
  }
  std::string problem = "it holds no snapshot";
  for (const FoundSnapshot& found : find_snapshots(path)) {
    try {
      if (!found.manifest) throw InvalidArgument(found.problem);
      return read_snapshot_files(found, options);
    } catch (const InvalidArgument& error) {
      problem = concat("none of its snapshots is intact; ", found.name, ": ", error.what());
    }
  }
  throw InvalidArgument(problem);
}

bool has_tensors(const DictValue& dict) {
  for (const DictItem& item : dict.items) {
    if (std::holds_alternative<TensorValue>(item.value.data)) return true;
  }
  return false;
}

std::string key_text(const Value& key) {
  if (const auto* text = std::get_if<std::string>(&key.data)) return *text;
  const auto* number = std::get_if<std::int64_t>(&key.data);
  return number != nullptr ? std::to_string(*number) : "?";
}

// Takes a dict apart: tensors at any depth, their names joined by dots; plain values stay where
// they are.
class Flattening {
 public:
  explicit Flattening(std::vector<std::string>& left_out) : left_out_(left_out) {}

  CheckpointPart part_of(const DictValue& dict) {
    if (dict.find("state") != nullptr && dict.find("param_groups") != nullptr) {
      return optimizer_from_dict(dict);
    }
    CheckpointPart part;
    add_dict(part, part.values, "", dict);
    return part;
  }

  void add_item(CheckpointPart& part, nlohmann::json& values, const std::string& prefix,
                const std::string& name, const Value& value) {
    if (const auto* tensor = std::get_if<TensorValue>(&value.data)) {
      part.tensors[prefix + name] = *tensor;
    } else if (const auto* inner = std::get_if<DictValue>(&value.data)) {
      nlohmann::json inner_values = nlohmann::json::object();
      add_dict(part, inner_values, concat(prefix, name, "."), *inner);
      if (!inner_values.empty()) values[name] = std::move(inner_values);
    } else {
      try {
        values[name] = json_of(value);
      } catch (const InvalidArgument&) {  // bytes, or a list with tensors
        left_out_.push_back(prefix + name);
      }
    }
  }

 private:
  void add_dict(CheckpointPart& part, nlohmann::json& values, const std::string& prefix,
                const DictValue& dict) {
    for (const DictItem& item : dict.items) {
      add_item(part, values, prefix, key_text(item.key), item.value);
    }
  }

  std::vector<std::string>& left_out_;
};

std::string outline(const Value& value, int depth) {
  const std::string indent(2 * static_cast<std::size_t>(depth), ' ');
  return std::visit(
      [&](const auto& data) -> std::string {
        using Data = std::decay_t<decltype(data)>;
        if constexpr (std::is_same_v<Data, DictValue>) {
          std::string text =
              concat(data.ordered ? "OrderedDict" : "dict", " of ", data.items.size());
          for (const DictItem& item : data.items) {
            text += concat("\n", indent, "  ", key_text(item.key), ": ",
                           outline(item.value, depth + 1));
          }
          return text;
        } else if constexpr (std::is_same_v<Data, TensorValue>) {
          return describe(data.type, data.shape);
        } else if constexpr (std::is_same_v<Data, BytesValue>) {
          return concat(data.bytes.size(), " bytes");
        } else if constexpr (std::is_same_v<Data, ListValue> || std::is_same_v<Data, TupleValue>) {
          std::string text = std::is_same_v<Data, ListValue> ? "list of " : "tuple of ";
          text += std::to_string(data.items.size());
          constexpr std::size_t kMost = 8;
          for (std::size_t i = 0; i < data.items.size() && i < kMost; ++i) {
            text += concat("\n", indent, "  ", i, ": ", outline(data.items[i], depth + 1));
          }
          if (data.items.size() > kMost) text += concat("\n", indent, "  ...");
          return text;
        } else {
          return json_of({data}).dump();
        }
      },
      value.data);
}

std::optional<Manifest> manifest_in(const DictValue& dict) {
  const Value* head = dict.find("lockstep_snapshot");
  if (head == nullptr) return std::nullopt;
  try {
    const nlohmann::json json = json_of(*head);
    return Manifest{.step = json.at("step"),
                    .epoch = json.at("epoch"),
                    .slots = json.at("slots"),
                    .seed = json.at("seed"),
                    .time = json.at("time")};
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(concat("its 'lockstep_snapshot' is damaged: ", first_line(error.what())));
  }
}

Checkpoint from_torch(const Value& value, const std::string& path) {
  const auto* dict = std::get_if<DictValue>(&value.data);
  if (dict == nullptr) throw InvalidArgument("it holds no dict");
  Checkpoint checkpoint{.kind = Checkpoint::Kind::torch, .path = path, .tree = outline(value, 0)};
  checkpoint.manifest = manifest_in(*dict);
  Flattening flattening(checkpoint.left_out);
  if (has_tensors(*dict)) {
    checkpoint.parts["model"] = flattening.part_of(*dict);
    return checkpoint;
  }
  CheckpointPart rest;
  for (const DictItem& item : dict->items) {
    const std::string name = key_text(item.key);
    if (name == "lockstep_snapshot") continue;
    if (const auto* inner = std::get_if<DictValue>(&item.value.data)) {
      checkpoint.parts[name] = flattening.part_of(*inner);
    } else {
      flattening.add_item(rest, rest.values, "", name, item.value);
    }
  }
  if (!rest.values.empty()) checkpoint.parts["values"] = std::move(rest);
  return checkpoint;
}

Checkpoint open_file(const std::string& path, const CheckpointOptions& options) {
  const FileContent content = FileContent::map(path);
  if (path.ends_with(kTensorSuffix)) {
    Checkpoint checkpoint{.kind = Checkpoint::Kind::safetensors, .path = path};
    add_tensors(checkpoint.parts["model"], content);
    return checkpoint;
  }
  return from_torch(read_torch_archive(content, {.check = options.verify}), path);
}

}  // namespace

Checkpoint open_checkpoint(const std::string& path, const CheckpointOptions& options) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw_errno(concat("cannot open '", path, "'"));
  try {
    return S_ISDIR(status.st_mode) ? open_directory(path, options) : open_file(path, options);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("'", path, "' cannot be used: ", error.what()));
  }
}

std::string without_wrappers(std::string name) {
  constexpr std::string_view kCompiled = "_orig_mod.", kParallel = "module.";
  for (std::size_t at = name.find(kCompiled); at != std::string::npos; at = name.find(kCompiled)) {
    name.erase(at, kCompiled.size());
  }
  while (name.starts_with(kParallel)) name.erase(0, kParallel.size());
  return name;
}

}  // namespace lockstep
