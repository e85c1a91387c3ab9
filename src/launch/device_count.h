#pragma once

#include <string>

#include "launch/gpu.h"
#include "lockstep/environment.h"

namespace lockstep {

/// Where GPUs are looked for; tests give a library and folders of their own.
struct GpuSources {
  std::string nvml_library = "libnvidia-ml.so.1";
  std::string sysfs = "/sys";
};

/// The GPUs that workers will see: NVIDIA's by NVML and CUDA_VISIBLE_DEVICES, else AMD's by the
/// kernel's list and ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES, which HIP
/// reads as well). GPU i belongs to local rank i.
GpuList find_gpus(const Environment& environment, const GpuSources& sources = {});

/// How many workers --nproc-per-node asks for: a number, "cpu" (the processors that this process
/// may run on), "gpu", or "auto" (GPUs if there are any, else processors).
///
/// Throws InvalidArgument for anything else, and for "gpu" where there is none, with the reason.
/// torchrun also knows "xpu" and names of devices that Python modules add: these need libtorch to
/// count and are refused by name.
int resolve_nproc(const std::string& word, const Environment& environment,
                  const GpuSources& sources = {});

}  // namespace lockstep
