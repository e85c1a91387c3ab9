#pragma once

#include <utility>
#include <vector>

#include <torch/torch.h>

#include "kernels/stream.h"
#ifdef LOCKSTEP_KERNELS_ON_CPU
#include "tests/kernels/on_cpu/guarded.h"
#else
#include <ATen/cuda/CUDAContext.h>
#endif

namespace lockstep::testing {

// Where kernels run: on a GPU, or emulated on a CPU (on_cpu/host_words.h). There nothing may be
// touched beside a tensor, and it starts as NaNs.
#ifdef LOCKSTEP_KERNELS_ON_CPU
inline constexpr at::DeviceType kDevice = at::kCPU;
inline kernels::Stream current_stream() {
  return nullptr;
}
inline at::Tensor empty_tensor(at::IntArrayRef sizes, at::ScalarType type) {
  return guarded(sizes, type);
}
#else
inline constexpr at::DeviceType kDevice = at::kCUDA;
inline kernels::Stream current_stream() {
  return at::cuda::getCurrentCUDAStream().stream();
}
inline at::Tensor empty_tensor(at::IntArrayRef sizes, at::ScalarType type) {
  return torch::empty(sizes, at::TensorOptions(kDevice).dtype(type));
}
#endif

/// What a test takes: an emulated kernel is a thousand times slower.
template <class T>
T by_device(T on_gpu, T on_cpu) {
  return kDevice == at::kCPU ? on_cpu : on_gpu;
}

/// Rows and columns for kernels that go through matrices row by row: one row, rows that no block's
/// share divides, GPT-2's widths and others.
inline std::vector<std::pair<int, int>> row_shapes() {
  return by_device<std::vector<std::pair<int, int>>>(
      {{1, 8},
       {3, 64},
       {1000, 256},
       {4097, 768},
       {2048, 1024},
       {513, 1280},
       {257, 1600},
       {64, 2048}},
      {{1, 8}, {3, 64}, {70, 264}, {35, 768}, {9, 1000}, {9, 1280}, {17, 1600}, {5, 2048}});
}

/// Memory of a tensor on the device as the kernels take it.
inline kernels::Bf16* bf16(const at::Tensor& tensor) {
  return reinterpret_cast<kernels::Bf16*>(tensor.data_ptr<at::BFloat16>());
}
inline float* f32(const at::Tensor& tensor) {
  return tensor.data_ptr<float>();
}

inline at::Tensor empty_bf16(at::IntArrayRef sizes) {
  return empty_tensor(sizes, at::kBFloat16);
}
inline at::Tensor empty_f32(at::IntArrayRef sizes) {
  return empty_tensor(sizes, at::kFloat);
}
/// For a kernel to read or change.
inline at::Tensor copy_of(const at::Tensor& tensor) {
  return empty_tensor(tensor.sizes(), tensor.scalar_type()).copy_(tensor);
}
inline at::Tensor random_bf16(at::IntArrayRef sizes, double scale = 1.0) {
  return copy_of((torch::randn(sizes, kDevice) * scale).to(at::kBFloat16));
}

/// The largest difference in units of what one rounding to bfloat16 may do to a value of that size:
/// at most 1 where all was computed exactly and rounded once.
inline double roundings(const at::Tensor& result, const at::Tensor& exact, double floor) {
  const at::Tensor unit = (exact.abs() + floor) / 256.0;
  return ((result.to(at::kDouble) - exact.to(at::kDouble)).abs() / unit).max().item<double>();
}

/// The size of the difference, of that of the exact result.
inline double relative_error(const at::Tensor& result, const at::Tensor& exact) {
  return ((result.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

}  // namespace lockstep::testing
