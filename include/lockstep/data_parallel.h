#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/csrc/api/include/torch/cuda.h>

#include "lockstep/error.h"

// torch's own header includes CUDA's, even where only the CPU is used.
#if __has_include(<cuda_runtime_api.h>)
#define LOCKSTEP_HAS_CUDA_HEADERS 1
#include <torch/csrc/api/include/torch/nn/parallel/data_parallel.h>
#else
#define LOCKSTEP_HAS_CUDA_HEADERS 0
#endif

namespace lockstep {

struct DataParallelOptions {
  std::vector<c10::Device> devices = {};  // empty: all CUDA devices, or the CPU where there is none
  std::optional<c10::Device> output_device = std::nullopt;  // unset: the first device
  std::int64_t dim = 0;                                     // along which the input is split
};

/// One process, several devices: splits the input, copies the module to every device, runs the
/// copies in threads and joins the outputs. It is torch::nn::parallel::data_parallel, here so that
/// the three ways of the tutorial can be compared; it copies the whole model in every step, and
/// DistributedDataParallel is faster in every case. The gradients arrive in `module`.
///
/// Throws InvalidArgument for several devices in a program compiled without CUDA's headers.
template <typename ModuleHolder>
at::Tensor data_parallel(ModuleHolder module, const at::Tensor& input,
                         const DataParallelOptions& options = {}) {
  std::vector<c10::Device> devices = options.devices;
  if (devices.empty()) {
    const auto count = static_cast<c10::DeviceIndex>(torch::cuda::device_count());
    for (c10::DeviceIndex i = 0; i < count; ++i) {
      devices.emplace_back(c10::kCUDA, i);
    }
    if (devices.empty()) devices.emplace_back(c10::kCPU);
  }
  if (devices.size() == 1) {
    module->to(devices.front());
    const at::Tensor output = module->forward(input.to(devices.front()));
    return output.to(options.output_device.value_or(devices.front()));
  }
#if LOCKSTEP_HAS_CUDA_HEADERS
  return torch::nn::parallel::data_parallel(module, input, devices, options.output_device,
                                            options.dim);
#else
  throw InvalidArgument(concat("data_parallel: ", devices.size(),
                               " devices, but this program was compiled without CUDA's headers; "
                               "give one device, or use DistributedDataParallel"));
#endif
}

}  // namespace lockstep
