#pragma once

// Products of tiles by four warps at once (wgmma): 64 rows, 16 terms, as many columns as there are
// sums for. A lane's sums lie as in load_matrices(), eight columns after the other, and in each the
// rows below 8 before the others.

#include "kernels/hopper.cuh"

namespace lockstep::kernels {

// The instruction names every register of its sums.
#define LOCKSTEP_NAMES_32                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LOCKSTEP_SUMS_32(s)                                                                       \
  "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7]), \
      "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]), "+f"(s[14]),    \
      "+f"(s[15]), "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), "+f"(s[19]), "+f"(s[20]), "+f"(s[21]),  \
      "+f"(s[22]), "+f"(s[23]), "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]), "+f"(s[28]),  \
      "+f"(s[29]), "+f"(s[30]), "+f"(s[31])
#define LOCKSTEP_NAMES_64                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LOCKSTEP_SUMS_64(s)                                                                       \
  "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7]), \
      "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]), "+f"(s[14]),    \
      "+f"(s[15]), "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), "+f"(s[19]), "+f"(s[20]), "+f"(s[21]),  \
      "+f"(s[22]), "+f"(s[23]), "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]), "+f"(s[28]),  \
      "+f"(s[29]), "+f"(s[30]), "+f"(s[31]), "+f"(s[32]), "+f"(s[33]), "+f"(s[34]), "+f"(s[35]),  \
      "+f"(s[36]), "+f"(s[37]), "+f"(s[38]), "+f"(s[39]), "+f"(s[40]), "+f"(s[41]), "+f"(s[42]),  \
      "+f"(s[43]), "+f"(s[44]), "+f"(s[45]), "+f"(s[46]), "+f"(s[47]), "+f"(s[48]), "+f"(s[49]),  \
      "+f"(s[50]), "+f"(s[51]), "+f"(s[52]), "+f"(s[53]), "+f"(s[54]), "+f"(s[55]), "+f"(s[56]),  \
      "+f"(s[57]), "+f"(s[58]), "+f"(s[59]), "+f"(s[60]), "+f"(s[61]), "+f"(s[62]), "+f"(s[63])
#define LOCKSTEP_NAMES_96                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define LOCKSTEP_SUMS_96(s)                                                                       \
  "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7]), \
      "+f"(s[8]), "+f"(s[9]), "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]), "+f"(s[14]),    \
      "+f"(s[15]), "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), "+f"(s[19]), "+f"(s[20]), "+f"(s[21]),  \
      "+f"(s[22]), "+f"(s[23]), "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]), "+f"(s[28]),  \
      "+f"(s[29]), "+f"(s[30]), "+f"(s[31]), "+f"(s[32]), "+f"(s[33]), "+f"(s[34]), "+f"(s[35]),  \
      "+f"(s[36]), "+f"(s[37]), "+f"(s[38]), "+f"(s[39]), "+f"(s[40]), "+f"(s[41]), "+f"(s[42]),  \
      "+f"(s[43]), "+f"(s[44]), "+f"(s[45]), "+f"(s[46]), "+f"(s[47]), "+f"(s[48]), "+f"(s[49]),  \
      "+f"(s[50]), "+f"(s[51]), "+f"(s[52]), "+f"(s[53]), "+f"(s[54]), "+f"(s[55]), "+f"(s[56]),  \
      "+f"(s[57]), "+f"(s[58]), "+f"(s[59]), "+f"(s[60]), "+f"(s[61]), "+f"(s[62]), "+f"(s[63]),  \
      "+f"(s[64]), "+f"(s[65]), "+f"(s[66]), "+f"(s[67]), "+f"(s[68]), "+f"(s[69]), "+f"(s[70]),  \
      "+f"(s[71]), "+f"(s[72]), "+f"(s[73]), "+f"(s[74]), "+f"(s[75]), "+f"(s[76]), "+f"(s[77]),  \
      "+f"(s[78]), "+f"(s[79]), "+f"(s[80]), "+f"(s[81]), "+f"(s[82]), "+f"(s[83]), "+f"(s[84]),  \
      "+f"(s[85]), "+f"(s[86]), "+f"(s[87]), "+f"(s[88]), "+f"(s[89]), "+f"(s[90]), "+f"(s[91]),  \
      "+f"(s[92]), "+f"(s[93]), "+f"(s[94]), "+f"(s[95])

// `n` sums, then the operands and, last, whether it adds.
#define LOCKSTEP_MULTIPLY(n, columns, names, words, last, ...)                          \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #last                         \
               ", 0;\n"                                                                 \
               "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" names \
               "}, " words "\n}"                                                        \
               : LOCKSTEP_SUMS_##n(sums)                                                \
               : __VA_ARGS__)

/// sums = a * b, or += where `adds`. A row of a tile runs along the sum or, where that operand is
/// transposed, along the result's rows (a) or columns (b).
template <bool kTransposedA, bool kTransposedB, int kSums>
__device__ inline void multiply(float (&sums)[kSums], std::uint64_t a, std::uint64_t b, int adds) {
  static_assert(kSums == 32 || kSums == 64 || kSums == 96);
  if constexpr (kSums == 32) {
    LOCKSTEP_MULTIPLY(32, 64, LOCKSTEP_NAMES_32, "%32, %33, adds, 1, 1, %35, %36;", 34, "l"(a),
                      "l"(b), "r"(adds), "n"(kTransposedA ? 1 : 0), "n"(kTransposedB ? 1 : 0));
  } else if constexpr (kSums == 64) {
    LOCKSTEP_MULTIPLY(64, 128, LOCKSTEP_NAMES_64, "%64, %65, adds, 1, 1, %67, %68;", 66, "l"(a),
                      "l"(b), "r"(adds), "n"(kTransposedA ? 1 : 0), "n"(kTransposedB ? 1 : 0));
  } else {
    LOCKSTEP_MULTIPLY(96, 192, LOCKSTEP_NAMES_96, "%96, %97, adds, 1, 1, %99, %100;", 98, "l"(a),
                      "l"(b), "r"(adds), "n"(kTransposedA ? 1 : 0), "n"(kTransposedB ? 1 : 0));
  }
}

/// The same where a is in registers, as load_matrices() would give it.
template <bool kTransposedB, int kSums>
__device__ inline void multiply(float (&sums)[kSums], const unsigned (&a)[4], std::uint64_t b,
                                int adds) {
  static_assert(kSums == 32 || kSums == 64);
  if constexpr (kSums == 32) {
    LOCKSTEP_MULTIPLY(32, 64, LOCKSTEP_NAMES_32, "{%32, %33, %34, %35}, %36, adds, 1, 1, %38;", 37,
                      "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds),
                      "n"(kTransposedB ? 1 : 0));
  } else {
    LOCKSTEP_MULTIPLY(64, 128, LOCKSTEP_NAMES_64, "{%64, %65, %66, %67}, %68, adds, 1, 1, %70;", 69,
                      "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds),
                      "n"(kTransposedB ? 1 : 0));
  }
}

#undef LOCKSTEP_MULTIPLY
#undef LOCKSTEP_NAMES_32
#undef LOCKSTEP_SUMS_32
#undef LOCKSTEP_NAMES_64
#undef LOCKSTEP_SUMS_64
#undef LOCKSTEP_NAMES_96
#undef LOCKSTEP_SUMS_96

}  // namespace lockstep::kernels
