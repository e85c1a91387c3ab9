#pragma once

#include "kernels/stream.h"

namespace lockstep::kernels {

/// A buffer of float32 and where it goes as bfloat16. Both begin at a multiple of 16 bytes.
struct CastPart {
  const float* from = nullptr;
  Bf16* to = nullptr;
  std::int64_t count = 0;
  std::int64_t first_piece = 0;  // number_pieces() fills it in
};

/// Returns how many pieces the parts make together.
std::int64_t number_pieces(CastPart* parts, int count);

/// All parts in one launch, rounded to the nearest. `parts` lies in device memory, with their
/// pieces numbered.
void cast_to_bf16(const CastPart* parts, int count, std::int64_t pieces, Stream stream);

}  // namespace lockstep::kernels
