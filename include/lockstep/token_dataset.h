#pragma once

#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "lockstep/token_cache.h"

namespace lockstep {

/// What a language model trains on. Both are int64 on the CPU; labels are the tokens that follow
/// those of the input, or -100 where no loss is taken.
struct TokenBlock {
  at::Tensor input;
  at::Tensor labels;
};

/// The blocks of a token cache, for a Loader.
///
///     TokenDataset dataset(cache.train());
///     Loader loader(dataset, {.batch_size = 8});
///     for (TokenBlock& batch : loader.epoch(0)) model->forward(batch.input, batch.labels);
class TokenDataset {
 public:
  explicit TokenDataset(TokenBlocks blocks) : blocks_(std::move(blocks)) {}

  std::int64_t size() const { return blocks_.size(); }
  std::int64_t seq_length() const { return blocks_.seq_length(); }
  const TokenBlocks& blocks() const { return blocks_; }

  /// Tensors of seq_length. Throws InvalidArgument for an index outside the dataset.
  TokenBlock get(std::int64_t index) const;

  /// Tensors of [indices, seq_length].
  TokenBlock get_batch(std::span<const std::int64_t> indices) const;

 private:
  TokenBlocks blocks_;
};

}  // namespace lockstep
