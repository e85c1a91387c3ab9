#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "archive/manifest.h"
#include "archive/value.h"

namespace lockstep {

/// One part of a checkpoint ("model"): tensors and values by name.
struct CheckpointPart {
  std::map<std::string, TensorValue> tensors = {};
  nlohmann::json values = nlohmann::json::object();
};

/// The content of a snapshot, of a .safetensors file or of a .pt file, in one form.
struct Checkpoint {
  enum class Kind { snapshot, safetensors, torch };

  Kind kind = Kind::snapshot;
  std::string path;                  // of what was read: for a directory, the snapshot in it
  std::optional<Manifest> manifest;  // of a snapshot, or of a .pt file made from one
  std::map<std::string, CheckpointPart> parts = {};
  std::string tree = {};                   // of a .pt file: an outline for people
  std::vector<std::string> left_out = {};  // of a .pt file: what has no place in `parts`
};

struct CheckpointOptions {
  bool verify = true;  // compare checksums, which reads everything
};

/// Opens a snapshot (a folder step_<N>, or a directory of them, of which it takes the newest that
/// is intact), a .safetensors file or a file of torch.save. In a .pt file each dict of tensors is a
/// part; one that is a state_dict itself has the part "model". Throws InvalidArgument or
/// SystemError.
Checkpoint open_checkpoint(const std::string& path, const CheckpointOptions& options = {});

/// Names without what DistributedDataParallel and torch.compile put before them.
std::string without_wrappers(std::string name);

}  // namespace lockstep
