#include "optim/gpu_adamw.h"

namespace lockstep {

bool step_on_gpu(const FusedBatch&, const AdamWOptions&) {
  return false;
}

}  // namespace lockstep
