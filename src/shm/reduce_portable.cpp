#include "shm/reduce_loops.h"
#include "shm/reduce_variants.h"

namespace lockstep {

void reduce_portable(const ReduceJob& job) {
  reduce_by_type(job);
}

}  // namespace lockstep
