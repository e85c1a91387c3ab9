#pragma once

#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/core/Tensor.h>

namespace lockstep {

/// A future that will hold `tensor`, or one on the same device. Told its device, it orders the
/// streams of whoever waits for it.
inline c10::intrusive_ptr<c10::ivalue::Future> make_tensor_future(const at::Tensor& tensor) {
  std::vector<c10::Device> devices;
  if (!tensor.is_cpu()) devices.push_back(tensor.device());
  return c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get(), devices);
}

}  // namespace lockstep
