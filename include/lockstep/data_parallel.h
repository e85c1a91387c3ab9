#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <torch/csrc/api/include/torch/nn/parallel/data_parallel.h>

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
template <typename ModuleHolder>
at::Tensor data_parallel(ModuleHolder module, const at::Tensor& input,
                         const DataParallelOptions& options = {}) {
  std::vector<c10::Device> devices = options.devices;
  if (devices.empty() && !torch::cuda::is_available()) devices.emplace_back(c10::kCPU);
  const auto chosen = devices.empty() ? std::optional<std::vector<c10::Device>>{}
                                      : std::optional<std::vector<c10::Device>>{devices};
  return torch::nn::parallel::data_parallel(module, input, chosen, options.output_device,
                                            options.dim);
}

}  // namespace lockstep
