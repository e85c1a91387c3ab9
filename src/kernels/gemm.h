#pragma once

#include <memory>
#include <string>

#include "kernels/stream.h"

namespace lockstep::kernels {

/// What is done to a product before it is written.
enum class Epilogue {
  none,
  bias,           // + bias, a value for each column
  bias_and_gelu,  // + bias, which goes to `aux`, then GELU's tanh form
  gelu_gradient,  // * the derivative of that GELU at `aux`
};

/// out[m, n] = a[m, k] * b[k, n], with a and b bfloat16, sums float32, and all matrices row after
/// row without gaps. A transposed operand lies in memory as [k, m] or [n, k].
struct Product {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  const Bf16* a = nullptr;
  const Bf16* b = nullptr;
  bool transpose_a = false;
  bool transpose_b = false;
  void* out = nullptr;  // bfloat16, or float32
  bool out_is_float = false;
  const Bf16* addend = nullptr;   // [m, n], added to the product; may not be `out`
  const float* factor = nullptr;  // in device memory: the product is multiplied by it; null: 1
  Epilogue epilogue = Epilogue::none;
  const Bf16* bias = nullptr;
  Bf16* aux = nullptr;  // [m, n]
};

struct GemmOptions {
  /// Where the algorithms that were found fastest are kept between runs; empty: nowhere.
  std::string cache_file;
  std::int64_t workspace_bytes = std::int64_t{128} << 20;
};

/// Matrix products by cublasLt. The first product of a kind tries what the library proposes and
/// keeps the fastest (by up to a fifth better than its first proposal), so it takes some
/// milliseconds and may not be part of a capture; for later ones nothing is made or looked up on
/// the device.
///
/// One per device; every stream gets a workspace of its own. Thread rule: one thread at a time.
class Gemm {
 public:
  explicit Gemm(GemmOptions options = {});
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// Throws std::runtime_error naming the product where the library refuses it.
  void run(const Product& product, Stream stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::kernels
