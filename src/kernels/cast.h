#pragma once

#include "kernels/stream.h"

namespace lockstep::kernels {

/// A buffer of float32 and where it goes as bfloat16. Both begin at a multiple of 16 bytes.
struct CastPart {
  const float* from = nullptr;
  Bf16* to = nullptr;
  std::int64_t count = 0;
};

/// All parts in one launch, rounded to the nearest. `parts` lies in device memory.
void cast_to_bf16(const CastPart* parts, int count, std::int64_t largest, Stream stream);

}  // namespace lockstep::kernels
