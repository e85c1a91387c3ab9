#include "lockstep/dataset.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

namespace lockstep {

at::Generator Random::generator() {
  return at::make_generator<at::CPUGeneratorImpl>((*this)());
}

namespace detail {

void throw_bad_index(const char* dataset, std::int64_t index, std::int64_t size) {
  throw InvalidArgument(
      concat(dataset, ": index ", index, " is outside of a dataset of ", size, " samples"));
}

void check_same_length(std::span<const at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.dim() == 0) {
      throw InvalidArgument(
          "TensorDataset: a tensor without rows; its first dimension counts the samples");
    }
    if (tensor.size(0) != tensors[0].size(0)) {
      throw InvalidArgument(concat("TensorDataset: one tensor has ", tensors[0].size(0),
                                   " rows, another ", tensor.size(0)));
    }
  }
}

at::Tensor select_sample(const at::Tensor& tensor, std::int64_t index) {
  return tensor.select(0, index);
}

at::Tensor select_batch(const at::Tensor& tensor, std::span<const std::int64_t> indices) {
  // index_select only reads them; from_blob has no type for that.
  auto* first = const_cast<std::int64_t*>(indices.data());
  at::Tensor wanted = at::from_blob(first, {std::ssize(indices)}, at::TensorOptions(at::kLong));
  if (!tensor.is_cpu()) wanted = wanted.to(tensor.device());
  return at::index_select(tensor, 0, wanted);
}

}  // namespace detail
}  // namespace lockstep
