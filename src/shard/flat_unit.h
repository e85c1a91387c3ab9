#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "ddp/module_walk.h"
#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "shard/flat_layout.h"
#include "shard/shard_exchange.h"

namespace lockstep {

/// Some parameters of a model in one buffer, of which each rank of a copy owns a part.
///
/// The parameters are views of the buffer. Where only parts are kept (ShardStage::parameters), its
/// memory is given up and comes back under the same storage: whatever backward has kept of a
/// parameter finds it there again.
///
/// Where the parts are of another type than the whole, or on another device, they lie on their own
/// in every stage, and are converted on their way.
class FlatUnit {
 public:
  FlatUnit(std::string name, std::vector<WalkedTensor> parameters, ShardExchange& exchange,
           const ShardedOptions& options);

  const std::string& name() const { return name_; }
  std::size_t parameter_count() const { return parameters_.size(); }
  const at::Tensor& parameter(std::size_t i) const { return parameters_.at(i).tensor; }
  const std::string& parameter_name(std::size_t i) const { return parameters_.at(i).name; }
  const FlatLayout& layout() const { return layout_; }
  /// This rank's parts, those of layout().pieces().
  const std::vector<NamedParameter>& pieces() const { return pieces_; }
  /// All of this rank's part, with padding, of which the pieces are stretches.
  const at::Tensor& part() const { return shard_; }
  /// The pieces' gradients, laid out as the part. Each piece has one.
  at::Tensor part_gradient();

  /// Begins to bring the parameters together, unless they are there or on their way.
  void fetch();
  /// Returns when they are there.
  void await();
  /// Gives them up, where the stage has it so.
  void release();
  /// An optimizer has changed, or is about to change, the parts.
  void outdate();
  /// The groups were aborted, and nothing touches this memory any more: forgets what was under way.
  /// The parts and their gradients stay.
  void drop_transfers();

  /// Makes the parameters whole in the type of the parts, whatever they compute in.
  void show();
  /// Undoes it.
  void hide();
  /// Brings the parameters together for good, in memory that outlives this object.
  void keep_whole();

  /// A parameter's gradient is there. With `take` it goes into the buffer that will be reduced,
  /// otherwise it stays with the parameter. True when it was the last one of the unit.
  bool note_gradient(std::size_t parameter, bool take);
  /// Begins to reduce what was taken; what was not counts as zero.
  void start_mean();
  /// The parts' gradients are there when it returns.
  void finish_mean();
  /// For the next backward.
  void forget_backward();
  /// Drops the gradients of the parts, and what was kept for a later reduction.
  void zero_grad();

  std::int64_t parameter_bytes() const;
  std::int64_t gradient_bytes() const;

 private:
  bool keeps_parts_only() const { return options_.stage == ShardStage::parameters; }
  /// Whether a part is something else than a stretch of the whole, as it is.
  bool converts() const { return converts_type() || shard_.device() != whole_.device(); }
  bool converts_type() const { return shard_.scalar_type() != whole_.scalar_type(); }
  void point_at(const at::Tensor& buffer);
  const at::Tensor& gradient_buffer();
  void put_gradient(std::size_t parameter, const at::Tensor& gradient);
  at::Tensor flat(std::size_t parameter, const at::Tensor& buffer) const;
  void allocate();

  std::string name_;
  std::vector<WalkedTensor> parameters_;
  ShardExchange& exchange_;
  ShardedOptions options_;
  FlatLayout layout_;
  at::Tensor whole_;
  at::Tensor shard_;  // part of `whole_`, or on its own where that is given up or of another type
  std::vector<NamedParameter> pieces_;

  bool is_current_ = true;  // whole_ holds what the parts hold
  Work fetching_;
  bool is_fetching_ = false;
  at::Tensor sent_;                 // what is being sent, where it is not the part itself
  std::vector<at::Tensor> hidden_;  // what the parameters were before show()

  at::Tensor gradients_;
  at::Tensor mean_gradient_;      // of the part, which the pieces' gradients are stretches of
  std::vector<at::Tensor> sums_;  // of whole gradients not yet reduced, in the type of the parts
  std::vector<bool> seen_, taken_;
  std::size_t seen_count_ = 0;
  std::optional<ShardExchange::Mean> mean_;
};

}  // namespace lockstep
