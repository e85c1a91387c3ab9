#include "lockstep/autocast.h"

#include <ATen/autocast_mode.h>

#include "lockstep/error.h"

namespace lockstep {

Autocast::Autocast(const AutocastOptions& options) {
  if (options.enabled && options.dtype != at::kBFloat16 && options.dtype != at::kHalf) {
    throw InvalidArgument(concat("Autocast: dtype is ", options.dtype,
                                 "; it must be bfloat16 (BFloat16) or float16 (Half)"));
  }
  before_ = {.device_type = options.device_type,
             .dtype = at::autocast::get_autocast_dtype(options.device_type),
             .enabled = at::autocast::is_autocast_enabled(options.device_type),
             .cache_enabled = at::autocast::is_autocast_cache_enabled()};
  at::autocast::set_autocast_enabled(options.device_type, options.enabled);
  at::autocast::set_autocast_dtype(options.device_type, options.dtype);
  at::autocast::increment_nesting();
  at::autocast::set_autocast_cache_enabled(options.cache_enabled);
}

Autocast::~Autocast() {
  // Cast weights are stale after the next step of the optimizer.
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
  at::autocast::set_autocast_enabled(before_.device_type, before_.enabled);
  at::autocast::set_autocast_dtype(before_.device_type, before_.dtype);
  at::autocast::set_autocast_cache_enabled(before_.cache_enabled);
}

}  // namespace lockstep
