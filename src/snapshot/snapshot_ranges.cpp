#include "snapshot/snapshot_ranges.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "archive/file_content.h"
#include "archive/snapshot_directory.h"
#include "archive/state_file.h"
#include "archive/tensor_parts.h"
#include "lockstep/error.h"
#include "snapshot/element_types.h"

namespace lockstep {
namespace {

constexpr std::size_t kLongestState = std::size_t{1} << 30;

/// The snapshot is of another model.
struct Mismatch : InvalidArgument {
  using InvalidArgument::InvalidArgument;
};

/// The files of one part of a snapshot.
class PartFiles {
 public:
  explicit PartFiles(std::vector<std::string> paths) {
    std::vector<SafetensorsHeader> headers;
    for (std::string& path : paths) {
      paths_.push_back(std::move(path));
      files_.push_back(open_to_read(paths_.back()));
      headers.push_back(read_header(files_.back(), paths_.back()));
    }
    tensors_ = catalogue_of(headers);
  }

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

  at::Tensor read(const StoredTensor& stored, std::int64_t begin, std::int64_t count) const {
    at::Tensor tensor = at::empty({count}, at::TensorOptions().dtype(scalar_type_of(stored.type)));
    const std::span<std::byte> target(static_cast<std::byte*>(tensor.mutable_data_ptr()),
                                      tensor.nbytes());
    for_each_stored(stored, begin, count, [&](const StoredBytes& piece) {
      read_exactly(files_[piece.file].fd.get(), piece.offset,
                   target.subspan(piece.target, piece.bytes), paths_[piece.file]);
    });
    return tensor;
  }

 private:
  static SafetensorsHeader read_header(const OpenedFile& file, const std::string& path) {
    std::vector<std::byte> beginning(std::min<std::uint64_t>(8, file.bytes));
    read_exactly(file.fd.get(), 0, beginning, path);
    beginning.resize(safetensors_header_bytes(beginning, file.bytes));
    read_exactly(file.fd.get(), 0, beginning, path);
    return parse_safetensors_header(beginning, file.bytes);
  }

  std::vector<std::string> paths_;
  std::vector<OpenedFile> files_;
  std::map<std::string, StoredTensor> tensors_;
};

std::int64_t elements_in(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t length : shape) elements *= length;
  return elements;
}

// The range that says how much of a tensor is wanted: its own, or that of the parameter it is named
// after.
const TensorRange* range_of(const std::string& name, const TensorRanges& ranges) {
  auto found = ranges.find(name);
  if (found == ranges.end()) found = ranges.find(name.substr(0, name.rfind('.')));
  return found == ranges.end() ? nullptr : &found->second;
}

void read_tensor(State& state, const std::string& name, const StoredTensor& stored,
                 const PartFiles& files, const TensorRanges& ranges) {
  const TensorRange* range = range_of(name, ranges);
  if (range != nullptr && range->count == 0) return;
  const std::int64_t elements = elements_in(stored.shape);
  if (range != nullptr && stored.shape == range->shape) {
    state.tensors[name] = files.read(stored, range->begin, range->count);
  } else {  // buffers, and counters of an optimizer
    state.tensors[name] = files.read(stored, 0, elements).view(stored.shape);
  }
}

// A part that has one of the tensors has all of them, in their shapes.
void check_fits(const std::string& part, const PartFiles& files, const TensorRanges& ranges,
                const std::map<std::string, std::string>& tied) {
  bool has_any = false;
  std::string lacks;
  for (const auto& [name, range] : ranges) {
    const auto alias = tied.find(name);
    const auto found = files.tensors().find(alias == tied.end() ? name : alias->second);
    if (found == files.tensors().end()) {
      if (lacks.empty()) lacks = name;
      continue;
    }
    has_any = true;
    if (found->second.shape != range.shape) {
      throw Mismatch(concat("'", name, "' is ", describe(found->second.type, found->second.shape),
                            " there, here it is ", describe(found->second.type, range.shape)));
    }
  }
  if (has_any && !lacks.empty()) throw Mismatch(concat("its ", part, " has no '", lacks, "'"));
}

Snapshot read_parts(const FoundSnapshot& found, const TensorRanges& ranges) {
  const Manifest& manifest = found.manifest.value();
  Snapshot snapshot{.step = manifest.step,
                    .epoch = manifest.epoch,
                    .slots = manifest.slots,
                    .seed = manifest.seed};
  const std::string text = read_text_file(concat(found.path, "/", kStateName), kLongestState);
  for (auto& [name, values] : parse_state_file(text)) {
    State& part = snapshot.parts[name];
    part.values = std::move(values.values);
    std::vector<std::string> paths = files_of_part(manifest, name);
    for (std::string& path : paths) path = concat(found.path, "/", path);
    const PartFiles files(std::move(paths));
    check_fits(name, files, ranges, values.tied);
    for (const auto& [tensor, stored] : files.tensors()) {
      read_tensor(part, tensor, stored, files, ranges);
    }
    for (const auto& [alias, target] : values.tied) {
      if (!ranges.contains(alias)) continue;
      const auto stored = files.tensors().find(target);
      if (stored != files.tensors().end()) read_tensor(part, alias, stored->second, files, ranges);
    }
  }
  return snapshot;
}

}  // namespace

void for_each_safetensor(
    const std::string& path,
    const std::function<void(const std::string& name, const at::Tensor& tensor)>& take) {
  try {
    const PartFiles file({path});
    for (const auto& [name, stored] : file.tensors()) {
      take(name, file.read(stored, 0, elements_in(stored.shape)).view(stored.shape));
    }
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("'", path, "' cannot be read: ", error.what()));
  }
}

RangesRead read_ranges(const RangesToRead& wanted) {
  RangesRead result;
  try {
    const FoundSnapshot found = open_snapshot(wanted.path);
    if (found.manifest->sequence != wanted.sequence) {
      throw InvalidArgument(concat("rank ", wanted.rank, " sees another one of that name"));
    }
    result.problem = find_missing_files(found);
    if (result.problem.empty()) {
      result.problem = find_damage(found, static_cast<std::size_t>(wanted.rank),
                                   static_cast<std::size_t>(wanted.ranks));
    }
    if (result.problem.empty()) result.snapshot = read_parts(found, wanted.ranges);
  } catch (const Mismatch& error) {
    result.mismatch = error.what();
  } catch (const std::exception& error) {
    result.problem = first_line(error.what());
  }
  return result;
}

}  // namespace lockstep
