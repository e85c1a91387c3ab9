#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

/// Elements [begin, begin + count) of a tensor in row-major order: what one rank holds of it.
struct TensorRange {
  std::vector<std::int64_t> shape = {};  // of the whole tensor
  std::int64_t begin = 0;
  std::int64_t count = 0;  // 0: this rank holds nothing of it

  friend bool operator==(const TensorRange&, const TensorRange&) = default;
};

/// By the tensor's name.
using TensorRanges = std::map<std::string, TensorRange>;

/// In State::values of a state in parts: by the name of a tensor {"shape": of the whole, "begin"}.
/// Such a tensor has one dimension. Each rank has a state of its own; together they have every
/// element once, and tensors that are not listed are on one rank.
inline constexpr const char* kStateRanges = "ranges";

}  // namespace lockstep
