#pragma once

#include <cstdint>

namespace lockstep {

/// Products of matrices that fit into a cache, where a BLAS spends its time on preparations.
struct ProductSize {
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // a multiple of 16
  std::int64_t inner = 0;
};

/// Element (i, k) of the left matrix is data[i * row + k * inner].
struct Matrix {
  const float* data = nullptr;
  std::int64_t row = 0;
  std::int64_t inner = 1;
};

/// Rows lie `row` apart, columns side by side.
struct Rows {
  const float* data = nullptr;
  std::int64_t row = 0;
};
struct OutputRows {
  float* data = nullptr;
  std::int64_t row = 0;
};

/// out = left * right.
void multiply(const ProductSize& size, const Matrix& left, const Rows& right,
              const OutputRows& out);
/// out += left * right.
void add_product(const ProductSize& size, const Matrix& left, const Rows& right,
                 const OutputRows& out);

}  // namespace lockstep
