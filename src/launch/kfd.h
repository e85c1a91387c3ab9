#pragma once

#include <string>

#include "launch/gpu.h"

namespace lockstep {

/// All of AMD's GPUs that ROCm can use on this machine, from what the kernel's driver says in
/// sysfs; in ROCm's order.
GpuList list_amd_gpus(const std::string& sysfs = "/sys");

}  // namespace lockstep
