#include "shard/shard_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "comm/group_impl.h"
#include "comm/ordered_sum.h"
#include "lockstep/error.h"
#include "lockstep/mesh.h"

namespace lockstep {
namespace {

constexpr int kCopyTag = 2;

}  // namespace

ShardExchange::ShardExchange(const ProcessGroup& group, c10::Device device) : device_(device) {
  if (!group.is_member()) {
    throw InvalidArgument("ShardedDataParallel: this rank is not a member of the group");
  }
  rank_ = group.rank();
  ranks_ = group.size();
  use_group(group);
  if (parts() > 1) copy_ = group;
}

ShardExchange::ShardExchange(World& world, c10::Device device, int replicas)
    : rank_(world.rank()), ranks_(world.world_size()), replicas_(replicas), device_(device) {
  if (replicas < 1 || ranks_ % replicas != 0) {
    throw InvalidArgument(concat("ShardedDataParallel: replicas is ", replicas,
                                 "; the number of ranks, ", ranks_, ", must be a multiple of it"));
  }
  join(world, /*forms_groups=*/!world.joins());
}

void ShardExchange::join(World& world, bool forms_groups) {
  if (world.world_size() != ranks_ || world.rank() != rank_) {
    throw InvalidArgument(concat("ShardedDataParallel: it is cut for rank ", rank_, " of ", ranks_,
                                 ", and this is rank ", world.rank(), " of ", world.world_size()));
  }
  use_group(world.group());
  if (parts() > 1) copy_ = group_;
  if (replicas_ > 1) holders_ = group_;
  if (parts() == 1 || replicas_ == 1 || !forms_groups) return;
  const Mesh mesh(world, {{.name = "copy", .size = replicas_}, {.name = "part", .size = parts()}});
  copy_ = mesh.group("part");
  holders_ = mesh.group("copy");
}

void ShardExchange::use_group(const ProcessGroup& group) {
  const GroupImpl& impl = *group.impl();
  if (!device_.is_cpu() && impl.serves_on_host(device_)) {
    throw InvalidArgument(concat("ShardedDataParallel: the model is on ", device_.str(),
                                 ", and the group has only '", impl.backend,
                                 "' for it; start the world with NCCL"));
  }
  adds_here_ = device_.is_cpu() && !impl.serves_with_shm(device_);
  group_ = group;
}

Work ShardExchange::gather(const at::Tensor& whole, const at::Tensor& shard) {
  if (parts() == 1) {
    whole.copy_(shard);
    return {};
  }
  traffic_.parameters += static_cast<std::int64_t>(whole.nbytes() - shard.nbytes());
  return copy_.all_gather_into_tensor(whole, shard, {.async_op = true});
}

ShardExchange::Mean ShardExchange::mean(const at::Tensor& whole, const at::Tensor& share) {
  Mean mean{.work = {}, .whole = whole, .received = {}, .share = share};
  traffic_.gradients += static_cast<std::int64_t>(whole.nbytes() - share.nbytes());
  if (adds_here_) {
    mean.received = at::empty_like(whole);
    mean.work = group_.all_to_all_single(mean.received, whole, {.async_op = true});
  } else {
    mean.work = group_.reduce_scatter_tensor(share, whole, {.op = ReduceOp::avg, .async_op = true});
  }
  return mean;
}

void ShardExchange::pass(const Passed& gradients) {
  const auto& [mine, to, theirs, from] = gradients;
  // Parts may lie in the memory of the host, which the group of a GPU does not send from.
  const at::Tensor sent = mine.defined() ? mine.to(device_) : mine;
  const at::Tensor received = theirs.defined() && theirs.device() != device_
                                  ? at::empty_like(theirs, theirs.options().device(device_))
                                  : theirs;
  std::vector<P2POp> messages;
  if (received.defined()) {
    messages.push_back(
        {.kind = P2POp::Kind::recv, .tensor = &received, .peer = from, .tag = kCopyTag});
  }
  if (sent.defined()) {
    traffic_.copies += static_cast<std::int64_t>(sent.nbytes());
    messages.push_back({.kind = P2POp::Kind::send, .tensor = &sent, .peer = to, .tag = kCopyTag});
  }
  if (messages.empty()) return;
  for (Work& work : group_.batch_isend_irecv(messages)) work.wait();
  if (!received.is_same(theirs)) theirs.copy_(received);
  if (device_.is_cpu()) return;
  // Whoever is told that the gradients are there relies on it, also when the group ends next.
  const c10::impl::VirtualGuardImpl guard(device_.type());
  guard.synchronizeStream(guard.getStream(device_));
}

at::Tensor ShardExchange::gather_number(const at::Tensor& number) {
  if (parts() == 1) return number;
  const at::Tensor numbers = at::empty({parts()}, number.options());
  copy_.all_gather_into_tensor(numbers, number);
  return numbers;
}

at::Tensor ShardExchange::finish(Mean& mean) {
  mean.work.wait();
  if (mean.received.defined()) {
    std::vector<at::Tensor> slots;
    const std::int64_t length = mean.share.numel();
    for (std::int64_t at = 0; at < mean.received.numel(); at += length) {
      slots.push_back(mean.received.narrow(0, at, length));
    }
    ordered_mean(slots, static_cast<double>(slots.size()), mean.share);
    mean.received = at::Tensor();
  }
  if (replicas_ == 1) return mean.share;
  const at::Tensor part = at::empty({mean.share.numel() * replicas_}, mean.share.options());
  traffic_.gradients += static_cast<std::int64_t>(part.nbytes() - mean.share.nbytes());
  holders_.all_gather_into_tensor(part, mean.share);
  return part;
}

}  // namespace lockstep
