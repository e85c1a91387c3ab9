#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/process_group.h"
#include "lockstep/sharded.h"

namespace lockstep {

/// How the parts of a buffer come together and how its mean is taken apart, on one group.
///
/// Means are added in rank order wherever processors do it, so that they have the bits of
/// DistributedDataParallel's ordered reduction: shared memory does so by itself, and over Gloo
/// parts are exchanged and added here. NCCL adds in its own order.
class ShardExchange {
 public:
  /// Throws InvalidArgument for a device that the group has no fitting backend for.
  ShardExchange(const ProcessGroup& group, c10::Device device);

  /// `whole` comes to hold every rank's `shard`. Both stay as they are until the work is done.
  Work gather(const at::Tensor& whole, const at::Tensor& shard);

  /// A mean under way. Its tensors belong to it until finish() has returned.
  struct Mean {
    Work work;
    at::Tensor whole;     // what this rank has added
    at::Tensor received;  // from the others, where they are added here
    at::Tensor shard;     // the result
    void finish();
  };
  /// `shard` comes to hold this rank's part of the mean of every rank's `whole`.
  Mean mean(const at::Tensor& whole, const at::Tensor& shard);

  ProcessGroup group() const { return group_; }
  c10::Device device() const { return device_; }
  const ShardedTraffic& traffic() const { return traffic_; }

 private:
  ProcessGroup group_;
  c10::Device device_;
  ShardedTraffic traffic_;
  bool adds_here_ = false;
};

}  // namespace lockstep
