#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <c10/core/Device.h>

namespace train_llm {

/// The name that the driver gives a GPU; empty for other devices and where it cannot be asked.
std::string device_name(c10::Device device);

/// Floating-point operations that a device of this name does in a second, in dense products of
/// bfloat16 (float16 where it has no bfloat16), as its maker says; nothing for unknown ones.
std::optional<double> peak_flops(std::string_view device_name);

/// "mem/host_gb" and "mem/host_peak_gb" of this process; on an accelerator also
/// "mem/device_gb" and "mem/device_peak_gb" since the last call.
std::map<std::string, double> memory_in_use(c10::Device device);

}  // namespace train_llm
