#include "lockstep/token_dataset.h"

#include <ATen/ops/empty.h>

namespace lockstep {
namespace {

std::span<std::int64_t> row_of(const at::Tensor& tensor, std::int64_t row, std::int64_t length) {
  return {tensor.mutable_data_ptr<std::int64_t>() + row * length, static_cast<std::size_t>(length)};
}

}  // namespace

TokenBlock TokenDataset::get(std::int64_t index) const {
  TokenBlock block{.input = at::empty({seq_length()}, at::kLong),
                   .labels = at::empty({seq_length()}, at::kLong)};
  blocks_.copy(index, row_of(block.input, 0, seq_length()), row_of(block.labels, 0, seq_length()));
  return block;
}

TokenBlock TokenDataset::get_batch(std::span<const std::int64_t> indices) const {
  const auto rows = static_cast<std::int64_t>(indices.size());
  TokenBlock batch{.input = at::empty({rows, seq_length()}, at::kLong),
                   .labels = at::empty({rows, seq_length()}, at::kLong)};
  for (std::int64_t row = 0; row < rows; ++row) {
    blocks_.copy(indices[static_cast<std::size_t>(row)], row_of(batch.input, row, seq_length()),
                 row_of(batch.labels, row, seq_length()));
  }
  return batch;
}

}  // namespace lockstep
