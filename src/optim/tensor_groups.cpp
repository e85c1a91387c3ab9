#include "optim/tensor_groups.h"

#include <algorithm>
#include <numeric>

#include <ATen/native/ForeachUtils.h>

namespace lockstep {

std::vector<std::vector<std::size_t>> group_by_device_and_dtype(
    const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) {
    return {};
  }
  const at::Tensor& first = tensors.front();
  if (std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
        return tensor.device() == first.device() && tensor.scalar_type() == first.scalar_type();
      })) {
    std::vector<std::size_t> all(tensors.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return {all};
  }
  const at::native::nested_optional_tensorvec_t lists = {{tensors.begin(), tensors.end()}};
  std::vector<std::vector<std::size_t>> groups;
  for (const auto& group :
       at::native::_group_tensors_by_first_tensors_device_and_dtype(lists, /*with_indices=*/true)) {
    const auto& positions = group.second.second;
    groups.emplace_back(positions.begin(), positions.end());
  }
  return groups;
}

std::vector<at::Tensor> select(const std::vector<at::Tensor>& tensors,
                               const std::vector<std::size_t>& positions) {
  std::vector<at::Tensor> chosen;
  chosen.reserve(positions.size());
  for (const std::size_t position : positions) {
    chosen.push_back(tensors[position]);
  }
  return chosen;
}

}  // namespace lockstep
