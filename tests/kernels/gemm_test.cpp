#include "kernels/gemm.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/kernels/tensors.h"

using namespace lockstep;
using namespace lockstep::testing;
using kernels::Epilogue;

namespace {

constexpr std::int64_t kM = 256, kN = 384, kK = 128;

at::Tensor as_stored(const at::Tensor& matrix, bool transposed) {
  return (transposed ? matrix.t() : matrix).contiguous();
}

constexpr double kOneRounding = 1.01;
// Terms of a sum that cancel out leave float32's errors of their own size.
constexpr double kSumSize = 11;

TEST(GemmOnGpu, MultipliesWhateverIsTransposed) {
  kernels::Gemm gemm;
  const at::Tensor a = random_bf16({kM, kK}), b = random_bf16({kK, kN});
  const at::Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble));
  const at::Tensor factor = torch::full({1}, 0.25, at::kCUDA);
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const bool is_float : {false, true}) {
        const at::Tensor first = as_stored(a, transpose_a), second = as_stored(b, transpose_b);
        const at::Tensor out = is_float ? empty_f32({kM, kN}) : empty_bf16({kM, kN});
        kernels::Product product{.m = kM,
                                 .n = kN,
                                 .k = kK,
                                 .a = bf16(first),
                                 .b = bf16(second),
                                 .transpose_a = transpose_a,
                                 .transpose_b = transpose_b,
                                 .out = out.data_ptr(),
                                 .out_is_float = is_float};
        gemm.run(product, current_stream());
        const double limit = is_float ? 1e-3 : kOneRounding;
        const double floor = is_float ? kSumSize : 0.1;
        EXPECT_LE(roundings(out, exact, floor), limit) << transpose_a << transpose_b << is_float;
        product.factor = f32(factor);
        gemm.run(product, current_stream());
        EXPECT_LE(roundings(out, 0.25 * exact, floor), limit);
      }
    }
  }
}

TEST(GemmOnGpu, EpiloguesAddBiasResidualAndGelu) {
  kernels::Gemm gemm;
  const at::Tensor a = random_bf16({kM, kK}, 0.3), b = random_bf16({kK, kN}, 0.3);
  const at::Tensor bias = random_bf16({kN}), addend = random_bf16({kM, kN});
  const at::Tensor out = empty_bf16({kM, kN}), aux = empty_bf16({kM, kN});
  const at::Tensor plain = a.to(at::kDouble).mm(b.to(at::kDouble));
  const at::Tensor biased = plain + bias.to(at::kDouble);
  kernels::Product product{.m = kM,
                           .n = kN,
                           .k = kK,
                           .a = bf16(a),
                           .b = bf16(b),
                           .out = out.data_ptr(),
                           .addend = bf16(addend),
                           .epilogue = Epilogue::bias,
                           .bias = bf16(bias)};
  gemm.run(product, current_stream());
  EXPECT_LE(roundings(out, biased + addend.to(at::kDouble), 0.1), kOneRounding);

  product.addend = nullptr;
  product.epilogue = Epilogue::bias_and_gelu;
  product.aux = bf16(aux);
  gemm.run(product, current_stream());
  EXPECT_LE(roundings(aux, biased, 0.1), kOneRounding);
  EXPECT_LE(roundings(out, at::gelu(biased, "tanh"), 0.1), 1.1);  // its tanh is an approximation

  product.bias = nullptr;
  product.epilogue = Epilogue::gelu_gradient;
  gemm.run(product, current_stream());
  const at::Tensor exact = at::gelu_backward(plain, aux.to(at::kDouble), "tanh");
  EXPECT_LE(roundings(out, exact, 0.1), 2);
}

TEST(GemmOnGpu, KeepsTheAlgorithmsThatItFound) {
  const std::string path = ::testing::TempDir() + "/lockstep_algorithms";
  std::filesystem::remove(path);
  const at::Tensor a = random_bf16({kM, kK}), b = random_bf16({kK, kN});
  const auto multiply = [&] {
    kernels::Gemm gemm({.cache_file = path});
    const at::Tensor out = empty_bf16({kM, kN});
    for (int i = 0; i < 2; ++i) {
      gemm.run({.m = kM, .n = kN, .k = kK, .a = bf16(a), .b = bf16(b), .out = out.data_ptr()},
               current_stream());
    }
    return out;
  };
  const at::Tensor first = multiply();
  const auto size = std::filesystem::file_size(path);
  EXPECT_GT(size, 0u);
  EXPECT_TRUE(multiply().equal(first));
  EXPECT_EQ(std::filesystem::file_size(path), size);  // nothing was tried again
  std::ofstream(path) << "nonsense\n\t\t\nx\ty\tzz\n";
  EXPECT_TRUE(multiply().equal(first));
  std::filesystem::remove(path);
}

TEST(GemmOnGpu, NamesAProductThatCannotBeComputed) {
  kernels::Gemm gemm;
  const at::Tensor a = random_bf16({3, 5});
  try {
    gemm.run({.m = 3, .n = 0, .k = 5, .a = bf16(a), .b = bf16(a), .out = a.data_ptr()},
             current_stream());
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("3x0x5"), std::string::npos) << error.what();
  }
}

}  // namespace
