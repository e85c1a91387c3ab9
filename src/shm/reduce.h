#pragma once

#include <cstdint>
#include <vector>

#include "shm/element.h"

namespace lockstep {

/// Combines the ranks' elements in rank order: ((p0 op p1) op p2) ..., element by element, so that
/// the result does not depend on how a tensor is cut into pieces. bfloat16 and float16 are combined
/// in float and rounded once, at the end. Sums are divided by the divisor.
///
/// `out` and `copy`, a second place for the result where one is needed, may be among `parts`. The
/// instruction set is chosen at run time and has no influence on the bits.
///
/// Throws InvalidArgument where check_reducible() does.
void reduce_elements(const ReduceSpec& spec, const std::vector<const void*>& parts,
                     std::int64_t count, void* out, void* copy = nullptr);

/// Throws InvalidArgument for bits of numbers that are not whole.
void check_reducible(const ReduceSpec& spec);

/// The instruction set that was chosen: "portable" (NEON on aarch64), "avx2", "avx512".
const char* reduce_instruction_set();

}  // namespace lockstep
