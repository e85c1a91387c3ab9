// Compiled for AVX2 and BMI2; called where the processor has them.
#if defined(__x86_64__)

#include "shm/pack_loops.h"
#include "shm/pack_variants.h"

namespace lockstep {

std::size_t pack_avx2(const PackJob& job) {
  return pack_piece(job);
}

bool unpack_avx2(const PackJob& job) {
  return unpack_piece(job);
}

}  // namespace lockstep

#endif
