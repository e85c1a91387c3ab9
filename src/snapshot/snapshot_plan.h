#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "archive/safetensors.h"
#include "archive/snapshot_writer.h"
#include "lockstep/snapshot.h"

namespace lockstep {

/// The files that a snapshot becomes, and where each tensor goes in them.
struct SnapshotPlan {
  struct Part {
    std::string file;  // "model.safetensors"
    SafetensorsLayout layout;
    std::vector<at::Tensor> tensors;  // those of the snapshot, tied ones once
    std::uint64_t staging_offset = 0;
  };

  Manifest manifest;  // without files
  std::vector<Part> parts;
  std::optional<std::string> state;  // what state.json will hold; unset: another rank writes it
  std::uint64_t staging_bytes = 0;   // for the tensors of all parts
};

/// Whether every rank has files to write: a part's values say which ranges its tensors are
/// (lockstep/tensor_range.h).
bool is_in_parts(const Snapshot& snapshot);

/// Of rank 0, or of another one that writes its share of what is in parts. Throws InvalidArgument
/// for what cannot be saved, naming the part and the tensor.
SnapshotPlan plan_snapshot(const Snapshot& snapshot, int rank = 0);

/// The files of a plan. With `staged`, the tensors' bytes are read there; without, from the tensors
/// themselves. The plan must outlive the result.
std::vector<SnapshotFile> files_of(const SnapshotPlan& plan, const std::byte* staged);

}  // namespace lockstep
