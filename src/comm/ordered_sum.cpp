#include "comm/ordered_sum.h"

#include "comm/element_types.h"
#include "lockstep/error.h"
#include "shm/reduce.h"

namespace lockstep {

void check_ordered_type(at::ScalarType type) {
  if (type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf)
    return;
  throw InvalidArgument(concat("ordered reduction: gradients of type ", type,
                               " are not supported; use Reduction::native"));
}

void ordered_mean(at::ScalarType type, const std::vector<const void*>& slots, std::int64_t count,
                  double divisor, void* out) {
  check_ordered_type(type);
  reduce_elements({.type = *element_type(type), .divisor = divisor}, slots, count, out);
}

void ordered_mean(const std::vector<at::Tensor>& slots, double divisor, const at::Tensor& out) {
  std::vector<const void*> data;
  for (const auto& slot : slots) data.push_back(slot.const_data_ptr());
  ordered_mean(out.scalar_type(), data, out.numel(), divisor, out.mutable_data_ptr());
}

}  // namespace lockstep
