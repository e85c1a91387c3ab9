#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/process_group.h"
#include "lockstep/sharded.h"
#include "lockstep/world.h"

namespace lockstep {

/// How the parts of a buffer come together and how its mean is taken apart.
///
/// The ranks form copies of the model, one unless there are replicas: rank r is in copy r / parts
/// and holds part r % parts. Parts come together within a copy. A mean is taken apart over all
/// ranks, into a share for each, and the holders of a part then bring its shares together: each
/// element is added up once, by one rank, so that all copies have the same bits.
///
/// Means are added in rank order wherever processors do it, so that they have the bits of
/// DistributedDataParallel's ordered reduction: shared memory does so by itself, and over Gloo
/// parts are exchanged and added here. NCCL adds in its own order.
class ShardExchange {
 public:
  /// One copy. Throws InvalidArgument for a device that the group has no fitting backend for.
  ShardExchange(const ProcessGroup& group, c10::Device device);
  /// So many copies, which divide the ranks of the world. A process that takes another's place
  /// (World::joins()) talks to the others after join() only.
  ShardExchange(World& world, c10::Device device, int replicas);

  /// In a world that was formed again: every rank calls it. Nothing may be under way.
  void join(World& world) { join(world, /*forms_groups=*/true); }

  /// `whole` comes to hold every part of this copy. Both stay as they are until the work is done.
  Work gather(const at::Tensor& whole, const at::Tensor& shard);

  /// Gradients for copies of parts. Where a tensor is undefined there is nothing to send, or to
  /// receive.
  struct Passed {
    at::Tensor sent;
    int to = 0;
    at::Tensor received;
    int from = 0;
  };
  void pass(const Passed& gradients);

  /// Every part's number, from a tensor with one of each.
  at::Tensor gather_number(const at::Tensor& number);

  /// A mean under way. Its tensors belong to it until finish() has returned.
  struct Mean {
    Work work;
    at::Tensor whole;     // what this rank has added, in the order of the reduction
    at::Tensor received;  // from the others, where they are added here
    at::Tensor share;     // what this rank adds up
  };
  /// `share` is as long as a share.
  Mean mean(const at::Tensor& whole, const at::Tensor& share);
  /// This rank's part of the mean of every rank's `whole`.
  at::Tensor finish(Mean& mean);

  int parts() const { return ranks_ / replicas_; }
  int part() const { return rank_ % parts(); }
  int copy() const { return rank_ / parts(); }
  int replicas() const { return replicas_; }
  int ranks() const { return ranks_; }

  ProcessGroup group() const { return group_; }  // all ranks
  c10::Device device() const { return device_; }
  const ShardedTraffic& traffic() const { return traffic_; }

 private:
  void join(World& world, bool forms_groups);
  void use_group(const ProcessGroup& group);

  int rank_ = 0, ranks_ = 1, replicas_ = 1;
  ProcessGroup group_;    // all ranks
  ProcessGroup copy_;     // those of this copy, by part, where there are several
  ProcessGroup holders_;  // those that hold this part, by copy, where there are several
  c10::Device device_;
  ShardedTraffic traffic_;
  bool adds_here_ = false;
};

}  // namespace lockstep
