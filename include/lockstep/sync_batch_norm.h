#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>

#include <torch/csrc/api/include/torch/nn/cloneable.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>

#include "lockstep/process_group.h"

namespace torch::nn {
class Sequential;
}

namespace lockstep {

struct SyncBatchNormOptions {
  std::int64_t num_features = 0;
  double eps = 1e-5;
  std::optional<double> momentum = 0.1;  // none: the mean of all batches so far
  bool affine = true;
  bool track_running_stats = true;
};

/// BatchNorm over the batches of all ranks together: in training, mean and variance are those of
/// the joined batch, so that small batches per rank normalise as one large one does. For inputs of
/// two to five dimensions, channels second. Names of parameters and buffers are those of BatchNorm,
/// so either loads the other's state.
///
/// Works on the CPU as well as on CUDA. Statistics are gathered and added in rank order: all ranks
/// compute the same bits. Ranks may have batches of different sizes, or an empty one.
///
/// Every forward in training and its backward are collectives: all ranks of the group call them in
/// the same order. The group may be the one that DistributedDataParallel reduces on. Gradients of
/// weight and bias are this rank's part, as those of any other layer; DistributedDataParallel
/// averages them.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  /// Tensors of another module that this one takes over; undefined where the options want none.
  struct Tensors {
    at::Tensor weight;
    at::Tensor bias;
    at::Tensor running_mean;
    at::Tensor running_var;
    at::Tensor num_batches_tracked;
  };

  /// Throws InvalidArgument for num_features below 1 and for a group that this rank is not in.
  SyncBatchNormImpl(const ProcessGroup& group, const SyncBatchNormOptions& options);
  SyncBatchNormImpl(const ProcessGroup& group, const SyncBatchNormOptions& options,
                    const Tensors& shared);

  /// Throws InvalidArgument for an input of other dimensions, and, on the CPU, where all ranks
  /// together have fewer than two values per channel to take a variance of.
  at::Tensor forward(const at::Tensor& input);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;

  const SyncBatchNormOptions& options() const { return options_; }

  const ProcessGroup& group() const { return group_; }
  /// From now on it communicates in this group: the one that replaces the group of its world after
  /// a recovery. Trainer does it.
  void set_group(const ProcessGroup& group) { group_ = group; }

  at::Tensor weight;               // undefined without `affine`
  at::Tensor bias;                 // likewise
  at::Tensor running_mean;         // undefined without `track_running_stats`
  at::Tensor running_var;          // likewise
  at::Tensor num_batches_tracked;  // likewise

 private:
  void adopt(const Tensors& tensors);

  ProcessGroup group_;
  SyncBatchNormOptions options_;
};

TORCH_MODULE(SyncBatchNorm);

/// A SyncBatchNorm in place of a BatchNorm1d, 2d or 3d. It shares the tensors of the given module,
/// so an optimizer made for that one goes on. Throws InvalidArgument for any other module.
SyncBatchNorm to_sync_batch_norm(const ProcessGroup& group, const torch::nn::Module& batch_norm);

/// A Sequential with the same layers, in which BatchNorms are replaced.
///
/// In C++ a module calls its members by type, so nothing can replace a BatchNorm that is a member
/// of a class of yours: declare the member as SyncBatchNorm, or hold a Sequential and say
///     layers = replace_module("layers", convert_sync_batch_norm(group, layers));
torch::nn::Sequential convert_sync_batch_norm(const ProcessGroup& group,
                                              const torch::nn::Sequential& layers);

}  // namespace lockstep
