#pragma once

#include <string>

#include "launch/gpu.h"

namespace lockstep {

/// All of NVIDIA's GPUs that this machine has, in the order of their bus addresses. Asks the
/// driver's management library, which is opened for the call and closed again, so that programs
/// that need no GPU do not carry it. A machine without the library has no GPUs.
GpuList list_nvidia_gpus(const std::string& library = "libnvidia-ml.so.1");

}  // namespace lockstep
