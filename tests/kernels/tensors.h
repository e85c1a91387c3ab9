#pragma once

#include <ATen/cuda/CUDAContext.h>
#include <torch/torch.h>

#include "kernels/stream.h"

namespace lockstep::testing {

/// Memory of a tensor on the GPU as the kernels take it.
inline kernels::Bf16* bf16(const at::Tensor& tensor) {
  return reinterpret_cast<kernels::Bf16*>(tensor.data_ptr<at::BFloat16>());
}
inline float* f32(const at::Tensor& tensor) {
  return tensor.data_ptr<float>();
}

inline kernels::Stream current_stream() {
  return at::cuda::getCurrentCUDAStream().stream();
}

inline at::Tensor random_bf16(at::IntArrayRef sizes, double scale = 1.0) {
  return (torch::randn(sizes, at::kCUDA) * scale).to(at::kBFloat16);
}
inline at::Tensor empty_bf16(at::IntArrayRef sizes) {
  return torch::empty(sizes, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
}
inline at::Tensor empty_f32(at::IntArrayRef sizes) {
  return torch::empty(sizes, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
}

/// The largest difference in units of what one rounding to bfloat16 may do to a value of that size:
/// at most 1 where all was computed exactly and rounded once.
inline double roundings(const at::Tensor& result, const at::Tensor& exact, double floor) {
  const at::Tensor unit = (exact.abs() + floor) / 256.0;
  return ((result.to(at::kDouble) - exact.to(at::kDouble)).abs() / unit).max().item<double>();
}

}  // namespace lockstep::testing
