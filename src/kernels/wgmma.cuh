#pragma once

// Products of tiles by four warps at once (wgmma): 64 rows, 16 terms, as many columns as there are
// sums for. A lane's sums lie as in load_matrices(), eight columns after the other, and in each the
// rows below 8 before the others.

#include "kernels/hopper.cuh"

namespace lockstep::kernels {

// The instruction names every register of its sums, here 32 at a time.
#define LOCKSTEP_NAMES_32                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LOCKSTEP_NAMES_64                                                            \
  LOCKSTEP_NAMES_32                                                                  \
  ", "                                                                               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LOCKSTEP_NAMES_96                                                            \
  LOCKSTEP_NAMES_64                                                                  \
  ", "                                                                               \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define LOCKSTEP_SUMS(s, i)                                                                     \
  "+f"(s[(i) + 0]), "+f"(s[(i) + 1]), "+f"(s[(i) + 2]), "+f"(s[(i) + 3]), "+f"(s[(i) + 4]),     \
      "+f"(s[(i) + 5]), "+f"(s[(i) + 6]), "+f"(s[(i) + 7]), "+f"(s[(i) + 8]), "+f"(s[(i) + 9]), \
      "+f"(s[(i) + 10]), "+f"(s[(i) + 11]), "+f"(s[(i) + 12]), "+f"(s[(i) + 13]),               \
      "+f"(s[(i) + 14]), "+f"(s[(i) + 15]), "+f"(s[(i) + 16]), "+f"(s[(i) + 17]),               \
      "+f"(s[(i) + 18]), "+f"(s[(i) + 19]), "+f"(s[(i) + 20]), "+f"(s[(i) + 21]),               \
      "+f"(s[(i) + 22]), "+f"(s[(i) + 23]), "+f"(s[(i) + 24]), "+f"(s[(i) + 25]),               \
      "+f"(s[(i) + 26]), "+f"(s[(i) + 27]), "+f"(s[(i) + 28]), "+f"(s[(i) + 29]),               \
      "+f"(s[(i) + 30]), "+f"(s[(i) + 31])
#define LOCKSTEP_SUMS_32(s) LOCKSTEP_SUMS(s, 0)
#define LOCKSTEP_SUMS_64(s) LOCKSTEP_SUMS_32(s), LOCKSTEP_SUMS(s, 32)
#define LOCKSTEP_SUMS_96(s) LOCKSTEP_SUMS_64(s), LOCKSTEP_SUMS(s, 64)

// `n` sums, then the operands and, last, whether it adds.
#define LOCKSTEP_MULTIPLY(n, columns, words, last, ...)                   \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #last           \
               ", 0;\n"                                                   \
               "wgmma.mma_async.sync.aligned.m64n" #columns               \
               "k16.f32.bf16.bf16 {" LOCKSTEP_NAMES_##n "}, " words "\n}" \
               : LOCKSTEP_SUMS_##n(sums)                                  \
               : __VA_ARGS__)

/// sums = a * b, or += where `adds`. A row of a tile runs along the sum or, where that operand is
/// transposed, along the result's rows (a) or columns (b).
template <bool kTransposedA, bool kTransposedB, int kSums>
__device__ inline void multiply(float (&sums)[kSums], std::uint64_t a, std::uint64_t b, int adds) {
  static_assert(kSums == 32 || kSums == 64 || kSums == 96);
  if constexpr (kSums == 32) {
    LOCKSTEP_MULTIPLY(32, 64, "%32, %33, adds, 1, 1, %35, %36;", 34, "l"(a), "l"(b), "r"(adds),
                      "n"(kTransposedA ? 1 : 0), "n"(kTransposedB ? 1 : 0));
  } else if constexpr (kSums == 64) {
    LOCKSTEP_MULTIPLY(64, 128, "%64, %65, adds, 1, 1, %67, %68;", 66, "l"(a), "l"(b), "r"(adds),
                      "n"(kTransposedA ? 1 : 0), "n"(kTransposedB ? 1 : 0));
  } else {
    LOCKSTEP_MULTIPLY(96, 192, "%96, %97, adds, 1, 1, %99, %100;", 98, "l"(a), "l"(b), "r"(adds),
                      "n"(kTransposedA ? 1 : 0), "n"(kTransposedB ? 1 : 0));
  }
}

/// The same where a is in registers, as load_matrices() would give it.
template <bool kTransposedB, int kSums>
__device__ inline void multiply(float (&sums)[kSums], const unsigned (&a)[4], std::uint64_t b,
                                int adds) {
  static_assert(kSums == 32 || kSums == 64);
  if constexpr (kSums == 32) {
    LOCKSTEP_MULTIPLY(32, 64, "{%32, %33, %34, %35}, %36, adds, 1, 1, %38;", 37, "r"(a[0]),
                      "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds),
                      "n"(kTransposedB ? 1 : 0));
  } else {
    LOCKSTEP_MULTIPLY(64, 128, "{%64, %65, %66, %67}, %68, adds, 1, 1, %70;", 69, "r"(a[0]),
                      "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds),
                      "n"(kTransposedB ? 1 : 0));
  }
}

#undef LOCKSTEP_MULTIPLY
#undef LOCKSTEP_SUMS
#undef LOCKSTEP_NAMES_32
#undef LOCKSTEP_SUMS_32
#undef LOCKSTEP_NAMES_64
#undef LOCKSTEP_SUMS_64
#undef LOCKSTEP_NAMES_96
#undef LOCKSTEP_SUMS_96

}  // namespace lockstep::kernels
