#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "archive/element_type.h"

namespace lockstep {

/// What a file says about a tensor, without the bytes.
struct TensorInfo {
  std::string name;
  ElementType type = ElementType::float32;
  std::vector<std::int64_t> shape = {};

  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

/// A tensor in memory that somebody else owns: contiguous, row-major, little-endian.
struct TensorView : TensorInfo {
  std::span<const std::byte> bytes = {};
};

}  // namespace lockstep
