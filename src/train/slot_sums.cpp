#include "train/slot_sums.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "comm/group_impl.h"
#include "comm/ordered_reduction.h"
#include "lockstep/error.h"

namespace lockstep {

SlotSums::SlotSums(ProcessGroup group, const SlotShare& share)
    : group_(std::move(group)), share_(share) {
  if (share_.one_each() && share_.slots > 1 && group_.impl()->gloo) {
    ordered_ = std::make_unique<OrderedReduction>(group_.impl());
    ordered_->set_divisor(1);
  }
}

SlotSums::~SlotSums() = default;

std::vector<double> SlotSums::add(const std::vector<std::vector<double>>& rows) {
  LOCKSTEP_CHECK(static_cast<int>(rows.size()) == share_.count(), rows.size(), " rows for ",
                 share_.count(), " slots");
  const std::size_t width = rows.empty() ? 0 : rows.front().size();
  if (ordered_) {
    std::vector<double> sum = rows.front();
    const at::Tensor view =
        at::from_blob(sum.data(), {static_cast<std::int64_t>(width)}, at::kDouble);
    ordered_->mean(view, OrderedReduction::Urgency::wait_now)->waitAndThrow();
    return sum;
  }
  return gather_and_add(rows, width);
}

std::vector<double> SlotSums::gather_and_add(const std::vector<std::vector<double>>& rows,
                                             std::size_t width) {
  // A rank may have one slot more than another; all send as much as the one that has most.
  const int most = (share_.slots + share_.world_size - 1) / share_.world_size;
  const auto columns = static_cast<std::int64_t>(width);
  at::Tensor mine = at::zeros({most, columns}, at::kDouble);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::copy(rows[row].begin(), rows[row].end(), mine.mutable_data_ptr<double>() + row * width);
  }
  at::Tensor all = mine;
  if (share_.world_size > 1) {
    const at::Device device = group_.impl()->small_device();
    at::Tensor gathered = at::zeros({share_.world_size * most, columns},
                                    at::TensorOptions(at::kDouble).device(device));
    group_.all_gather_into_tensor(gathered, mine.to(device));
    all = gathered.cpu();
  }
  std::vector<double> sum(width, 0.0);
  const double* values = all.const_data_ptr<double>();
  for (int rank = 0; rank < share_.world_size; ++rank) {
    const int slots = SlotShare::of(share_.slots, rank, share_.world_size).count();
    for (int slot = 0; slot < slots; ++slot) {
      const double* row = values + (rank * most + slot) * columns;
      for (std::size_t i = 0; i < width; ++i) sum[i] += row[i];
    }
  }
  return sum;
}

}  // namespace lockstep
