#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace lockstep {

struct LinearCrossEntropyOptions {
  std::int64_t ignored_label = -100;
  /// The product has this many columns, of which those beyond weight's rows count for nothing.
  /// 0: as many as weight has rows.
  std::int64_t padded_columns = 0;
  /// Compute products in this type (autocast); unset: in that of `hidden`.
  std::optional<at::ScalarType> compute_type = std::nullopt;
  /// Rows of logits that exist at a time, in bytes of float32.
  std::int64_t chunk_bytes = std::int64_t{8} << 20;
};

struct LinearCrossEntropy {
  at::Tensor sum;  // of the losses; float32, with its graph
  std::int64_t count = 0;
};

/// The cross entropy of softmax(hidden * weight^T) against labels, for hidden [N, E], weight [V, E]
/// and labels [N]. The whole of the logits never exists: rows go through in chunks, and where
/// gradients will be wanted they are computed in the same pass, while the chunk is in the cache.
/// So one backward is possible; a second throws Error. Throws InvalidArgument for a label that is
/// neither ignored nor a row of `weight`.
LinearCrossEntropy linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                        const at::Tensor& labels,
                                        const LinearCrossEntropyOptions& options = {});

}  // namespace lockstep
