#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/unique_dim.h>
#include <ATen/ops/zeros.h>

#include "comm/messages.h"
#include "comm/ordered_reduction.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Sends `mine` to all and receives everybody's; `like(rank)` makes the tensor to receive into.
template <typename Like>
std::vector<at::Tensor> exchange(const GroupImpl& group, Messages messages, const at::Tensor& mine,
                                 Like like) {
  std::vector<at::Tensor> all;
  for (int peer = 0; peer < group.size(); ++peer) {
    all.push_back(peer == group.rank ? mine : like(peer));
    if (peer != group.rank && all.back().numel() > 0) messages.receive(all.back(), peer);
  }
  for (int step = 1; step < group.size(); ++step) {
    if (mine.numel() > 0) messages.send(mine, (group.rank + step) % group.size());
  }
  messages.wait();
  return all;
}

}  // namespace

// Rows of each slot are unique after coalescing, so adding one slot after the other onto the union
// of rows adds every element in slot order.
at::Tensor OrderedReduction::sparse_mean(const at::Tensor& tensor) {
  GroupImpl& group = *group_;
  group.guard->check_usable("all_reduce");
  if (!gloo_) {
    throw InvalidArgument(
        "ordered reduction of sparse gradients needs gloo; use Reduction::native");
  }
  const int tag = next_tag();
  const GroupGuard::InFlight in_flight(*group.guard, "all_reduce");
  try {
    const at::Tensor own = tensor.cpu().coalesce();
    const at::Tensor own_indices = own.indices().contiguous(),
                     own_values = own.values().contiguous();
    at::Tensor own_count = at::empty({1}, at::kLong);
    *own_count.mutable_data_ptr<std::int64_t>() = own_values.size(0);

    const auto counts = exchange(group, Messages(gloo_, tag), own_count,
                                 [](int) { return at::empty({1}, at::kLong); });
    const auto count_of = [&](int rank) { return *counts[rank].const_data_ptr<std::int64_t>(); };
    const auto indices = exchange(group, Messages(gloo_, tag), own_indices, [&](int rank) {
      return at::empty({own_indices.size(0), count_of(rank)}, own_indices.options());
    });
    const auto values = exchange(group, Messages(gloo_, tag), own_values, [&](int rank) {
      auto sizes = own_values.sizes().vec();
      sizes[0] = count_of(rank);
      return at::empty(sizes, own_values.options());
    });

    std::int64_t entries = 0;
    for (int rank = 0; rank < group.size(); ++rank) entries += count_of(rank);
    if (entries == 0) return tensor;

    const auto [rows, row_of_entry, counts_unused] =
        at::unique_dim(at::cat(indices, 1), 1, /*sorted=*/true, /*return_inverse=*/true);
    auto sizes = own_values.sizes().vec();
    sizes[0] = rows.size(1);
    const bool narrow =
        own_values.scalar_type() == at::kBFloat16 || own_values.scalar_type() == at::kHalf;
    const auto sum_type = narrow ? at::kFloat : own_values.scalar_type();
    at::Tensor sum = at::zeros(sizes, own_values.options().dtype(sum_type));
    std::int64_t offset = 0;
    for (int slot = 0; slot < group.size(); ++slot) {
      sum.index_add_(0, row_of_entry.narrow(0, offset, count_of(slot)), values[slot].to(sum_type));
      offset += count_of(slot);
    }
    const at::Tensor mean = sum.div_(divisor_).to(own_values.scalar_type());
    return at::_sparse_coo_tensor_unsafe(rows, mean, tensor.sizes(), tensor.options())
        ._coalesced_(true)
        .to(tensor.device());
  } catch (...) {
    group.guard->rethrow(std::current_exception(), "all_reduce");
  }
}

}  // namespace lockstep
