#include "models/small_product.h"

#include <type_traits>

#include "models/vector4.h"

namespace lockstep {
namespace {

// Tiles of 6 x 16 numbers keep 24 registers as sums.
constexpr std::int64_t kVectors = 4;
constexpr std::int64_t kTileColumns = 16;

template <int kTileRows, bool kAdd>
void tile(std::int64_t inner, const float* left, const Matrix& left_steps, const float* right,
          std::int64_t right_row, float* out, std::int64_t out_row) {
  Vector4 sums[kTileRows][kVectors] = {};
  for (std::int64_t k = 0; k < inner; ++k) {
    const float* const right_k = right + k * right_row;
    const Vector4 columns[kVectors] = {load4(right_k), load4(right_k + 4), load4(right_k + 8),
                                       load4(right_k + 12)};
    const float* const left_k = left + k * left_steps.inner;
#pragma GCC unroll 8
    for (int i = 0; i < kTileRows; ++i) {
      const float value = left_k[i * left_steps.row];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[i][v] += value * columns[v];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* const to = out + i * out_row + 4 * v;
      store4(to, kAdd ? load4(to) + sums[i][v] : sums[i][v]);
    }
  }
}

template <bool kAdd>
void product(const ProductSize& size, const Matrix& left, const Rows& right,
             const OutputRows& out) {
  const auto run = [&](auto rows, std::int64_t i, std::int64_t j) {
    tile<decltype(rows)::value, kAdd>(size.inner, left.data + i * left.row, left, right.data + j,
                                      right.row, out.data + i * out.row + j, out.row);
  };
  for (std::int64_t j = 0; j < size.columns; j += kTileColumns) {
    std::int64_t i = 0;
    for (; i + 6 <= size.rows; i += 6) run(std::integral_constant<int, 6>(), i, j);
    switch (size.rows - i) {
      case 5:
        run(std::integral_constant<int, 5>(), i, j);
        break;
      case 4:
        run(std::integral_constant<int, 4>(), i, j);
        break;
      case 3:
        run(std::integral_constant<int, 3>(), i, j);
        break;
      case 2:
        run(std::integral_constant<int, 2>(), i, j);
        break;
      case 1:
        run(std::integral_constant<int, 1>(), i, j);
        break;
      default:
        break;
    }
  }
}

}  // namespace

void multiply(const ProductSize& size, const Matrix& left, const Rows& right,
              const OutputRows& out) {
  product<false>(size, left, right, out);
}

void add_product(const ProductSize& size, const Matrix& left, const Rows& right,
                 const OutputRows& out) {
  product<true>(size, left, right, out);
}

}  // namespace lockstep
