#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "archive/tensor_view.h"

namespace lockstep {

/// The format safetensors: eight bytes with the length of a header, the header (JSON that gives
/// each tensor a name, a type, a shape and a place), then all tensors without a gap.
struct Safetensors {
  std::map<std::string, std::string> metadata = {};
  std::vector<TensorView> tensors = {};  // in the order of the file; they refer to the given bytes
};

/// Checks everything: the length of the header, its JSON (no name twice), types, shapes, that each
/// tensor has the bytes that its shape asks for, and that tensors fill the file without holes,
/// overlaps or rest. Throws InvalidArgument.
Safetensors parse_safetensors(std::span<const std::byte> file);

/// What a file's header says, for those who read parts of the file.
struct SafetensorsHeader {
  struct Tensor {
    TensorInfo info;
    std::uint64_t offset = 0;  // in the file
    std::uint64_t bytes = 0;
  };
  std::map<std::string, std::string> metadata = {};
  std::vector<Tensor> tensors = {};  // in the order of the file
};

/// How many bytes of a file its header takes, by its first eight. Throws InvalidArgument.
std::uint64_t safetensors_header_bytes(std::span<const std::byte> beginning,
                                       std::uint64_t file_bytes);

/// The same checks for the beginning of a file of `file_bytes`; it must hold the whole header.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> beginning,
                                           std::uint64_t file_bytes);

/// Where the tensors of a file to be written go.
struct SafetensorsLayout {
  std::string header;                  // the file's beginning, its length included
  std::vector<std::size_t> order;      // in which the tensors are written, as indices
  std::vector<std::uint64_t> offsets;  // of each tensor given, from the end of the header
  std::uint64_t data_bytes = 0;        // of all tensors

  std::uint64_t file_bytes() const { return header.size() + data_bytes; }
};

/// Tensors are sorted by the size of their elements, largest first, then by name, and the header is
/// padded, to 64 bytes or in large files to 4096, so that each tensor can be used where it lies.
/// Throws InvalidArgument for a type that the format lacks, a name twice, and a bad shape.
SafetensorsLayout lay_out_safetensors(std::span<const TensorInfo> tensors,
                                      const std::map<std::string, std::string>& metadata);

}  // namespace lockstep
