#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

struct AutocastOptions {
  c10::DeviceType device_type = c10::DeviceType::CPU;
  c10::ScalarType dtype = c10::ScalarType::BFloat16;  // or Half
  bool enabled = true;        // false inside another one: full precision for a part of a forward
  bool cache_enabled = true;  // keep cast weights until the outermost guard ends
};

/// While it lives, operators that gain from it compute in `dtype` on this thread, as under Python's
/// torch.autocast: around forward and loss, not around backward.
///
///     {
///       lockstep::Autocast autocast({.device_type = device.type()});
///       loss = criterion(model.forward(input), target);
///     }
///     loss.backward();
///
/// Guards nest; they end in the reverse order on the thread that made them.
class [[nodiscard]] Autocast {
 public:
  /// Throws InvalidArgument for a dtype that is neither bfloat16 nor float16.
  explicit Autocast(const AutocastOptions& options);
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast();

 private:
  AutocastOptions before_;
};

}  // namespace lockstep
