#pragma once

#include <memory>

#include "kernels/stream.h"

namespace lockstep::kernels {

/// Causal self-attention of bfloat16 over rows [batch * tokens]. Queries, keys and values of all
/// heads lie in one row of a matrix [rows, 3 * heads * head_size], in this order, and so do their
/// gradients: nothing is split or joined.
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t head_size = 0;
  float scale = 1.0f;  // of the products of queries and keys

  bool operator<(const AttentionShape& other) const;
};

struct AttentionForward {
  const Bf16* qkv = nullptr;
  Bf16* out = nullptr;           // [rows, heads * head_size]
  float* log_sum_exp = nullptr;  // [batch, heads, tokens], for backward
};

struct AttentionBackward {
  const Bf16* qkv = nullptr;
  const Bf16* out = nullptr;
  const float* log_sum_exp = nullptr;
  const Bf16* gradient = nullptr;  // of `out`
  Bf16* qkv_gradient = nullptr;
};

/// Attention by cuDNN, without a library in between. The first call for a shape makes a plan, which
/// takes some hundred milliseconds and may not be part of a capture.
///
/// One per device. Thread rule: one thread at a time.
class Attention {
 public:
  Attention();
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  /// Whether cuDNN was found and has a way to compute this shape, forward and backward.
  bool takes(const AttentionShape& shape);

  /// Bytes of scratch, for takes() shapes only.
  std::int64_t forward_scratch(const AttentionShape& shape);
  std::int64_t backward_scratch(const AttentionShape& shape);

  /// Throw std::runtime_error with cuDNN's words where it fails.
  void forward(const AttentionShape& shape, const AttentionForward& call, void* scratch,
               Stream stream);
  void backward(const AttentionShape& shape, const AttentionBackward& call, void* scratch,
                Stream stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::kernels
