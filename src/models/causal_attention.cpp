#include "models/causal_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "models/small_product.h"
#include "models/vector_loops.h"

namespace lockstep {
namespace {

// Queries that are looked at together: keys behind the last of them are left out, so few is less
// work, and many are faster to multiply.
constexpr std::int64_t kRows = 32;

std::int64_t padded(std::int64_t count) {
  return (count + kAttentionStep - 1) / kAttentionStep * kAttentionStep;
}

// One head of one sequence.
class Head {
 public:
  explicit Head(const AttentionShape& shape)
      : shape_(shape), size_(shape.head_size), tokens_(shape.tokens), columns_(padded(tokens_)) {
    keys_.assign(static_cast<std::size_t>(size_ * columns_), 0.f);
    scores_.resize(static_cast<std::size_t>(kRows * columns_));
  }

  /// Random numbers depend on the head, the query and the key alone.
  void begin(std::int64_t index) { index_ = index; }

  void forward(const float* qkv, float* out, float* lse) {
    const std::int64_t stride = 3 * shape_.width();
    transpose(qkv + shape_.width(), shape_.scale, keys_);
    const float* values = qkv + 2 * shape_.width();
    for (std::int64_t begin = 0; begin < tokens_; begin += kRows) {
      const std::int64_t rows = std::min(kRows, tokens_ - begin);
      multiply_scores(qkv, begin, rows, keys_, scores_);
      float factors[kRows];
      for (std::int64_t i = 0; i < rows; ++i) {
        float* row = scores_.data() + i * columns_;
        const std::int64_t seen = begin + i + 1;
        const float top = largest(row, seen);
        const double sum = exponentials(row, seen, top);
        std::fill(row + seen, row + begin + rows, 0.f);
        factors[i] = static_cast<float>(1 / sum);
        lse[begin + i] = static_cast<float>(top + std::log(sum));
        if (shape_.dropout > 0) drop(row, seen, shape_.dropout, key_of(begin + i));
      }
      float* result = out + begin * shape_.width();
      multiply({.rows = rows, .columns = size_, .inner = begin + rows},
               {.data = scores_.data(), .row = columns_, .inner = 1},
               {.data = values, .row = stride}, {.data = result, .row = shape_.width()});
      for (std::int64_t i = 0; i < rows; ++i) {
        scale(result + i * shape_.width(), size_, factors[i]);
      }
    }
  }

  void backward(const float* qkv, const float* out, const float* lse, const float* out_gradient,
                float* qkv_gradient) {
    const std::int64_t width = shape_.width(), stride = 3 * width;
    transpose(qkv + width, shape_.scale, keys_);
    values_.assign(keys_.size(), 0.f);
    transpose(qkv + 2 * width, 1, values_);
    slopes_.resize(scores_.size());
    key_gradient_.assign(static_cast<std::size_t>(columns_ * size_), 0.f);
    value_gradient_.assign(key_gradient_.size(), 0.f);
    for (std::int64_t begin = 0; begin < tokens_; begin += kRows) {
      const std::int64_t rows = std::min(kRows, tokens_ - begin), seen = begin + rows;
      const float* query = qkv + begin * stride;
      const float* gradient = out_gradient + begin * width;
      multiply_scores(qkv, begin, rows, keys_, scores_);
      multiply({.rows = rows, .columns = padded(seen), .inner = size_},
               {.data = gradient, .row = width, .inner = 1},
               {.data = values_.data(), .row = columns_},
               {.data = slopes_.data(), .row = columns_});
      for (std::int64_t i = 0; i < rows; ++i) {
        score_gradient(begin + i, seen, i, out + (begin + i) * width, gradient + i * width,
                       lse[begin + i]);
      }
      const Matrix transposed_scores{.data = scores_.data(), .row = 1, .inner = columns_};
      const Matrix transposed_slopes{.data = slopes_.data(), .row = 1, .inner = columns_};
      add_product({.rows = seen, .columns = size_, .inner = rows}, transposed_scores,
                  {.data = gradient, .row = width}, {.data = value_gradient_.data(), .row = size_});
      add_product({.rows = seen, .columns = size_, .inner = rows}, transposed_slopes,
                  {.data = query, .row = stride}, {.data = key_gradient_.data(), .row = size_});
      multiply({.rows = rows, .columns = size_, .inner = seen},
               {.data = slopes_.data(), .row = columns_, .inner = 1},
               {.data = qkv + width, .row = stride},
               {.data = qkv_gradient + begin * stride, .row = stride});
    }
    for (std::int64_t token = 0; token < tokens_; ++token) {
      float* into = qkv_gradient + token * stride;
      std::copy_n(key_gradient_.data() + token * size_, size_, into + width);
      std::copy_n(value_gradient_.data() + token * size_, size_, into + 2 * width);
    }
  }

 private:
  // Rows of [tokens, size] become columns, multiplied by `factor`.
  void transpose(const float* from, float factor, std::vector<float>& into) const {
    const std::int64_t stride = 3 * shape_.width();
    for (std::int64_t token = 0; token < tokens_; ++token) {
      for (std::int64_t i = 0; i < size_; ++i) {
        into[static_cast<std::size_t>(i * columns_ + token)] = factor * from[token * stride + i];
      }
    }
  }

  void multiply_scores(const float* qkv, std::int64_t begin, std::int64_t rows,
                       const std::vector<float>& keys, std::vector<float>& scores) const {
    const std::int64_t stride = 3 * shape_.width();
    multiply({.rows = rows, .columns = padded(begin + rows), .inner = size_},
             {.data = qkv + begin * stride, .row = stride, .inner = 1},
             {.data = keys.data(), .row = columns_}, {.data = scores.data(), .row = columns_});
  }

  // Of row i of a block, whose query is token `query`: scores become probabilities, and slopes,
  // which hold the gradient of the probabilities, the gradient of the scores.
  void score_gradient(std::int64_t query, std::int64_t end, std::int64_t i, const float* out,
                      const float* gradient, float lse) {
    float* probability = scores_.data() + i * columns_;
    float* slope = slopes_.data() + i * columns_;
    const std::int64_t seen = query + 1;
    exponentials(probability, seen, lse);
    std::fill(probability + seen, probability + end, 0.f);
    if (shape_.dropout > 0) drop(slope, seen, shape_.dropout, key_of(query));
    float mean = 0;  // of the slopes, by probability
    for (std::int64_t k = 0; k < size_; ++k) mean += out[k] * gradient[k];
    for (std::int64_t k = 0; k < seen; ++k) {
      slope[k] = probability[k] * (slope[k] - mean) * shape_.scale;
    }
    std::fill(slope + seen, slope + end, 0.f);
    // The values' gradient is by what was looked at.
    if (shape_.dropout > 0) drop(probability, seen, shape_.dropout, key_of(query));
  }

  std::uint32_t key_of(std::int64_t query) const {
    std::uint64_t key = shape_.seed + static_cast<std::uint64_t>(index_ * tokens_ + query);
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
    key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
    return static_cast<std::uint32_t>((key ^ (key >> 31)) >> 16);
  }

  const AttentionShape& shape_;
  std::int64_t size_, tokens_;
  std::int64_t index_ = 0;             // of the head, through the batch
  std::int64_t columns_;               // tokens, rounded up
  std::vector<float> keys_;            // [size, columns], times the scale
  std::vector<float> values_;          // [size, columns]
  std::vector<float> scores_;          // [rows, columns]
  std::vector<float> slopes_;          // likewise
  std::vector<float> key_gradient_;    // [tokens, size]
  std::vector<float> value_gradient_;  // likewise
};

// Where a head's part begins in a tensor whose tokens are `token_width` numbers apart.
std::int64_t offset(const AttentionShape& shape, std::int64_t index, std::int64_t token_width) {
  const std::int64_t sequence = index / shape.heads, head = index % shape.heads;
  return sequence * shape.tokens * token_width + head * shape.head_size;
}

}  // namespace

bool causal_attention_is_fast() {
#if defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

void causal_attention(const AttentionShape& shape, const float* qkv, float* out, float* lse,
                      std::int64_t first, std::int64_t last) {
  Head head(shape);
  for (std::int64_t i = first; i < last; ++i) {
    head.begin(i);
    head.forward(qkv + offset(shape, i, 3 * shape.width()), out + offset(shape, i, shape.width()),
                 lse + i * shape.tokens);
  }
}

void causal_attention_gradient(const AttentionShape& shape, const AttentionGradient& tensors,
                               std::int64_t first, std::int64_t last) {
  Head head(shape);
  for (std::int64_t i = first; i < last; ++i) {
    head.begin(i);
    const std::int64_t wide = offset(shape, i, 3 * shape.width());
    const std::int64_t narrow = offset(shape, i, shape.width());
    head.backward(tensors.qkv + wide, tensors.out + narrow, tensors.lse + i * shape.tokens,
                  tensors.out_gradient + narrow, tensors.qkv_gradient + wide);
  }
}

}  // namespace lockstep
