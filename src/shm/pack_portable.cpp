#include "shm/pack_loops.h"
#include "shm/pack_variants.h"

namespace lockstep {

std::size_t pack_portable(const PackJob& job) {
  return pack_piece(job);
}

bool unpack_portable(const PackJob& job) {
  return unpack_piece(job);
}

}  // namespace lockstep
