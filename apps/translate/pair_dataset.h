#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace translate {

/// A pair as tokens, without marks.
struct PairTokens {
  std::vector<std::int32_t> source;
  std::vector<std::int32_t> target;
};

/// What a step is computed from: int64, [B, longest source] and [B, longest target], filled up with
/// padding. The source has both marks, the target that of the start, the labels that of the end.
struct PairBatch {
  at::Tensor source;
  at::Tensor target;
  at::Tensor labels;
  at::Tensor indices;  // [B] of the pairs in their dataset
};

/// Pairs in memory, for a Loader.
class PairDataset {
 public:
  explicit PairDataset(std::vector<PairTokens> pairs) : pairs_(std::move(pairs)) {}

  std::int64_t size() const { return static_cast<std::int64_t>(pairs_.size()); }
  const PairTokens& get(std::int64_t index) const {
    return pairs_.at(static_cast<std::size_t>(index));
  }
  PairBatch get_batch(std::span<const std::int64_t> indices) const;

 private:
  std::vector<PairTokens> pairs_;
};

/// A source as the encoder takes it.
std::vector<std::int32_t> with_marks(const std::vector<std::int32_t>& source);

}  // namespace translate
