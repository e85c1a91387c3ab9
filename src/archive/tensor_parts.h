#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "archive/manifest.h"
#include "archive/safetensors.h"

namespace lockstep {

// A part of a snapshot ("model") that every rank has written a file of: "model.rank_3.safetensors".
// Tensors in it may be stretches of whole ones, which its metadata tells.

/// Under which metadata a file says what its tensors are stretches of: a JSON object, by the name
/// of a tensor {"shape": of the whole, "begin": the first element in row-major order}. Tensors that
/// are not in it are whole.
inline constexpr const char* kRangesMetadata = "lockstep_ranges";

std::string rank_file_name(const std::string& part, int rank);

/// The files of a part, in the order of ranks; "<part>.safetensors" alone for one that was written
/// whole. Empty where the part has no tensors.
std::vector<std::string> files_of_part(const Manifest& manifest, const std::string& part);

/// Where elements of a tensor lie.
struct TensorStretch {
  std::size_t file = 0;      // in the order given to the catalogue
  std::uint64_t offset = 0;  // in the file
  std::int64_t begin = 0;    // in the whole tensor
  std::int64_t count = 0;
};

struct StoredTensor {
  ElementType type = ElementType::float32;
  std::vector<std::int64_t> shape = {};
  std::vector<TensorStretch> stretches = {};  // in order, without a gap
};

/// Puts together what the headers of a part's files say. Throws InvalidArgument when tensors are
/// incomplete, overlap or contradict each other.
std::map<std::string, StoredTensor> catalogue_of(const std::vector<SafetensorsHeader>& files);

/// Calls `read` for what is stored of elements [begin, begin + count) of a tensor: where in which
/// file, and where it goes in the result; all in bytes.
struct StoredBytes {
  std::size_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t target = 0;
  std::uint64_t bytes = 0;
};
void for_each_stored(const StoredTensor& tensor, std::int64_t begin, std::int64_t count,
                     const std::function<void(const StoredBytes&)>& read);

}  // namespace lockstep
