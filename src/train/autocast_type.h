#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

#include "lockstep/trainer_options.h"

namespace lockstep {

/// What matrix products are computed in; nothing: in the type of their inputs.
inline std::optional<at::ScalarType> autocast_type(Precision precision) {
  if (precision == Precision::bf16_autocast) return at::kBFloat16;
  if (precision == Precision::fp16_autocast) return at::kHalf;
  return std::nullopt;
}

}  // namespace lockstep
