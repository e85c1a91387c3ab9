#include "shard/shard_exchange.h"

#include <ATen/ops/empty_like.h>

#include "comm/group_impl.h"
#include "comm/ordered_sum.h"
#include "lockstep/error.h"

namespace lockstep {

ShardExchange::ShardExchange(const ProcessGroup& group, c10::Device device)
    : group_(group), device_(device) {
  if (!group.is_member()) {
    throw InvalidArgument("ShardedDataParallel: this rank is not a member of the group");
  }
  const GroupImpl& impl = *group.impl();
  if (!device.is_cpu() && impl.serves_on_host(device)) {
    throw InvalidArgument(concat("ShardedDataParallel: the model is on ", device.str(),
                                 ", and the group has only '", impl.backend,
                                 "' for it; start the world with NCCL"));
  }
  adds_here_ = device.is_cpu() && !impl.serves_with_shm(device);
}

Work ShardExchange::gather(const at::Tensor& whole, const at::Tensor& shard) {
  traffic_.parameters += static_cast<std::int64_t>(whole.nbytes() - shard.nbytes());
  return group_.all_gather_into_tensor(whole, shard, {.async_op = true});
}

ShardExchange::Mean ShardExchange::mean(const at::Tensor& whole, const at::Tensor& shard) {
  Mean mean{.work = {}, .whole = whole, .received = {}, .shard = shard};
  traffic_.gradients += static_cast<std::int64_t>(whole.nbytes() - shard.nbytes());
  if (adds_here_) {
    mean.received = at::empty_like(whole);
    mean.work = group_.all_to_all_single(mean.received, whole, {.async_op = true});
  } else {
    mean.work = group_.reduce_scatter_tensor(shard, whole, {.op = ReduceOp::avg, .async_op = true});
  }
  return mean;
}

void ShardExchange::Mean::finish() {
  work.wait();
  if (!received.defined()) return;
  std::vector<at::Tensor> slots;
  const std::int64_t length = shard.numel();
  for (std::int64_t at = 0; at < received.numel(); at += length) {
    slots.push_back(received.narrow(0, at, length));
  }
  ordered_mean(slots, static_cast<double>(slots.size()), shard);
}

}  // namespace lockstep
