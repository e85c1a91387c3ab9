// Compiled for AVX2; called where the processor has it.
#if defined(__x86_64__)

#include "shm/reduce_loops.h"
#include "shm/reduce_variants.h"

namespace lockstep {

void reduce_avx2(const ReduceJob& job) {
  reduce_by_type(job);
}

}  // namespace lockstep

#endif
