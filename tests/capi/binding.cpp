#include "tests/capi/binding.h"

#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

namespace {

std::string error;

at::Tensor& tensor_of(lockstep_tensor* tensor) {
  return *reinterpret_cast<at::Tensor*>(tensor);
}

lockstep_tensor* give(at::Tensor tensor) {
  return reinterpret_cast<lockstep_tensor*>(new at::Tensor(std::move(tensor)));
}

}  // namespace

lockstep_tensor* binding_parameter(float value) {
  return give(at::full({1}, value).requires_grad_());
}

lockstep_tensor* binding_linear(lockstep_tensor* weight, lockstep_tensor* bias, float input) {
  const at::Tensor product = tensor_of(weight).mul(input);
  return give(bias ? product.add(tensor_of(bias)) : product);
}

int binding_backward(lockstep_tensor* output) {
  try {
    tensor_of(output).backward();
    return 0;
  } catch (const std::exception& caught) {
    error = caught.what();
    return 1;
  }
}

const char* binding_error() {
  return error.c_str();
}
float binding_value(lockstep_tensor* tensor) {
  return tensor_of(tensor).item<float>();
}
float binding_gradient(lockstep_tensor* tensor) {
  return tensor_of(tensor).grad().item<float>();
}
void binding_free(lockstep_tensor* tensor) {
  delete &tensor_of(tensor);
}
