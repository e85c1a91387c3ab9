#pragma once

#include "kernels/unfinished_sums.h"

namespace lockstep::kernels {

/// Products of bfloat16 with more in their epilogue than cublasLt does at full speed, in tiles of
/// our own (product_tiles.cuh). Sums are float32, and rounded once.

/// Whether the current device has what these are made of (Hopper), and the shape fits: n and k are
/// multiples of 64.
bool has_tile_products(std::int64_t m, std::int64_t n, std::int64_t k);

/// Whether they take less time than cublasLt: there are two tiles or more for every multiprocessor,
/// so that one is finished while the next is multiplied, and these are hardly wider than n.
bool tile_products_pay(std::int64_t m, std::int64_t n, std::int64_t k);

/// out[m, n] = GELU's tanh form of a[m, k] * weight[k, n] + bias[n], and its derivative there,
/// which is all that backward needs.
struct GeluProduct {
  std::int64_t m = 0, n = 0, k = 0;
  const Bf16* a = nullptr;
  const Bf16* weight = nullptr;
  const Bf16* bias = nullptr;
  Bf16* slope = nullptr;
  Bf16* out = nullptr;
};
void gelu_product(const GeluProduct& product, Stream stream);

/// out[m, n] = gradient[m, k] * weight[n, k]^T * slope[m, n], value by value, and the column sums
/// of `out`, which are left to be finished. `partial` is scratch of gelu_gradient_scratch() floats.
struct GeluGradientProduct {
  std::int64_t m = 0, n = 0, k = 0;
  const Bf16* gradient = nullptr;
  const Bf16* weight = nullptr;
  const Bf16* slope = nullptr;
  Bf16* out = nullptr;
  float* sums = nullptr;
  float* partial = nullptr;
};
std::int64_t gelu_gradient_scratch(std::int64_t m, std::int64_t n);
[[nodiscard]] UnfinishedSums gelu_gradient_product(const GeluGradientProduct& product,
                                                   Stream stream);

/// out[m, n] = exp(a[m, k] * weight[n, k]^T) / 2^shifts[m], of the columns from `used` on 0, and
/// what each row of a tile adds up to before it is rounded: `partial` has
/// exponential_product_parts() rows of m floats.
struct ExponentialProduct {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t used = 0;
  const Bf16* a = nullptr;
  const Bf16* weight = nullptr;
  const float* shifts = nullptr;
  Bf16* out = nullptr;
  float* partial = nullptr;
};
int exponential_product_parts(std::int64_t n);
void exponential_product(const ExponentialProduct& product, Stream stream);

}  // namespace lockstep::kernels
