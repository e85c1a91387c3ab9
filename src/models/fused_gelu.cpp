#include "models/fused_gelu.h"

#include "kernels/tile_products.h"

namespace lockstep::fused {
namespace {

// Of so many rows or fewer, a pass of its own for the GELU's gradient takes less than cublasLt's
// epilogue.
constexpr std::int64_t kRowsForAPass = 16384;

}  // namespace

Gelu linear_gelu(kernels::Gemm& gemm, const at::Tensor& x, const at::Tensor& weight,
                 const at::Tensor& bias) {
  const std::int64_t columns = weight.size(1);
  if (!kernels::tile_products_pay(x.size(0), columns, x.size(1))) {
    Gelu result{.out = {}, .slope = {}, .before = empty_rows(x, columns)};
    result.out = linear(gemm, x, weight, bias, {}, result.before);
    return result;
  }
  const Gelu result{.out = empty_rows(x, columns), .slope = empty_rows(x, columns), .before = {}};
  kernels::gelu_product({.m = x.size(0),
                         .n = columns,
                         .k = x.size(1),
                         .a = bits(x),
                         .weight = bits(weight),
                         .bias = bits(bias),
                         .slope = bits(result.slope),
                         .out = bits(result.out)},
                        stream());
  return result;
}

Summed gelu_input_gradient(kernels::Gemm& gemm, const at::Tensor& gradient,
                           const at::Tensor& weight, const Gelu& gelu) {
  if (!gelu.slope.defined()) {
    if (gradient.size(0) <= kRowsForAPass) {
      return gelu_gradient(linear_input_gradient(gemm, gradient, weight), gelu.before);
    }
    return {.rows = linear_input_gradient(gemm, gradient, weight, gelu.before), .sums = {}};
  }
  const std::int64_t rows = gradient.size(0), columns = weight.size(0);
  Summed result{.rows = empty_rows(gradient, columns), .sums = empty_floats(gradient, {columns})};
  const at::Tensor partial =
      empty_floats(gradient, {kernels::gelu_gradient_scratch(rows, columns)});
  result.unfinished = {.sums = kernels::gelu_gradient_product({.m = rows,
                                                               .n = columns,
                                                               .k = gradient.size(1),
                                                               .gradient = bits(gradient),
                                                               .weight = bits(weight),
                                                               .slope = bits(gelu.slope),
                                                               .out = bits(result.rows),
                                                               .sums = floats(result.sums),
                                                               .partial = floats(partial)},
                                                              stream()),
                       .partial = partial};
  return result;
}

}  // namespace lockstep::fused
