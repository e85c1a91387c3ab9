#include "snapshot/snapshot_plan.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <map>
#include <tuple>

#include "archive/snapshot_directory.h"
#include "archive/state_file.h"
#include "archive/tensor_parts.h"
#include "lockstep/error.h"
#include "lockstep/tensor_range.h"
#include "snapshot/element_types.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kPartAlignment = 4096;

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

void check_part_name(const std::string& name) {
  const std::string_view allowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
  if (name.empty() || name.find_first_not_of(allowed) != std::string::npos) {
    throw InvalidArgument(concat("a part of a snapshot cannot be called '", name,
                                 "'; letters, digits, '-' and '_' can be used"));
  }
}

void check_tensor(const std::string& part, const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw InvalidArgument(concat("tensor '", name, "' of part '", part, "' is undefined"));
  }
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    throw InvalidArgument(concat("tensor '", name, "' of part '", part,
                                 "' is sparse or quantized; a snapshot holds dense tensors"));
  }
}

// Two names of one tensor: the same memory seen in the same way.
auto identity_of(const at::Tensor& tensor) {
  return std::tuple(tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec(),
                    tensor.scalar_type());
}

// What a file of one rank says about its tensors; empty for a part that is not in parts.
std::map<std::string, std::string> metadata_of(const std::string& name, const State& state) {
  // "pt" tells other readers that the tensors are PyTorch's.
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  const auto ranges = state.values.find(kStateRanges);
  if (ranges == state.values.end()) return metadata;
  for (const auto& [tensor, range] : ranges->items()) {
    if (state.tensors.contains(tensor)) continue;
    throw InvalidArgument(
        concat("part '", name, "' has a range of '", tensor, "', and no such tensor"));
  }
  metadata[kRangesMetadata] = ranges->dump();
  return metadata;
}

SnapshotPlan::Part plan_part(const std::string& name, const std::string& file, const State& state,
                             PartValues& values) {
  SnapshotPlan::Part part{.file = file};
  std::vector<TensorInfo> infos;
  std::map<decltype(identity_of(std::declval<at::Tensor>())), std::string> seen;
  for (const auto& [tensor_name, tensor] : state.tensors) {
    check_tensor(name, tensor_name, tensor);
    if (tensor.numel() > 0) {  // empty ones may all have the same address
      const auto [first, is_new] = seen.emplace(identity_of(tensor), tensor_name);
      if (!is_new) {
        values.tied[tensor_name] = first->second;
        continue;
      }
    }
    infos.push_back({.name = tensor_name,
                     .type = element_type_of(tensor.scalar_type(), tensor_name),
                     .shape = tensor.sizes().vec()});
    part.tensors.push_back(tensor.detach());
  }
  part.layout = lay_out_safetensors(infos, metadata_of(name, state));
  return part;
}

void append_tensor(const at::Tensor& tensor, const SnapshotFile::Append& append) {
  const at::Tensor here = tensor.cpu().contiguous();
  append({static_cast<const std::byte*>(here.const_data_ptr()), here.nbytes()});
}

}  // namespace

bool is_in_parts(const Snapshot& snapshot) {
  return std::ranges::any_of(snapshot.parts, [](const auto& part) {
    return part.second.values.is_object() && part.second.values.contains(kStateRanges);
  });
}

SnapshotPlan plan_snapshot(const Snapshot& snapshot, int rank) {
  if (snapshot.step < 0) {
    throw InvalidArgument(concat("the step of a snapshot is ", snapshot.step, "; it begins at 0"));
  }
  SnapshotPlan plan{.manifest = {.step = snapshot.step,
                                 .epoch = snapshot.epoch,
                                 .slots = snapshot.slots,
                                 .seed = snapshot.seed,
                                 .time = utc_now()}};
  std::map<std::string, PartValues> values;
  for (const auto& [name, state] : snapshot.parts) {
    check_part_name(name);
    PartValues& of_part = values[name];
    of_part.values = state.values;
    const bool in_parts = of_part.values.is_object() && of_part.values.erase(kStateRanges) > 0;
    // Of what is in parts every rank has a file, however little is in it.
    if (!in_parts && (state.tensors.empty() || rank != 0)) continue;
    const std::string file = in_parts ? rank_file_name(name, rank) : name + kTensorSuffix;
    SnapshotPlan::Part part = plan_part(name, file, state, of_part);
    part.staging_offset = plan.staging_bytes;
    plan.staging_bytes += part.layout.data_bytes;
    plan.staging_bytes =
        (plan.staging_bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
    plan.parts.push_back(std::move(part));
  }
  if (rank == 0) plan.state = format_state_file(values);
  return plan;
}

std::vector<SnapshotFile> files_of(const SnapshotPlan& plan, const std::byte* staged) {
  std::vector<SnapshotFile> files;
  for (const SnapshotPlan::Part& part : plan.parts) {
    const auto produce = [&part, staged](const SnapshotFile::Append& append) {
      append(std::as_bytes(std::span(part.layout.header)));
      if (staged != nullptr) {
        append({staged + part.staging_offset, part.layout.data_bytes});
      } else {
        for (const std::size_t index : part.layout.order) {
          append_tensor(part.tensors[index], append);
        }
      }
    };
    files.push_back({.name = part.file, .bytes = part.layout.file_bytes(), .produce = produce});
  }
  if (plan.state) {
    files.push_back({.name = kStateName,
                     .bytes = plan.state->size(),
                     .produce = [&plan](const SnapshotFile::Append& append) {
                       append(std::as_bytes(std::span(*plan.state)));
                     }});
  }
  return files;
}

}  // namespace lockstep
