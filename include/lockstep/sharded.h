#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "lockstep/clip_grad.h"
#include "lockstep/optimizer.h"
#include "lockstep/process_group.h"
#include "lockstep/state.h"
#include "lockstep/tensor_range.h"
#include "lockstep/tensor_walk.h"
#include "lockstep/unit.h"
#include "lockstep/world.h"

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn

namespace lockstep {

/// What each rank keeps a part of only. Every stage has what the one before has.
enum class ShardStage {
  optimizer = 1,   // the optimizer's state
  gradients = 2,   // and gradients: whole only for the unit whose backward runs
  parameters = 3,  // and parameters: whole only for the units that are being used
};

struct ShardedOptions {
  ShardStage stage = ShardStage::parameters;
  /// Names of modules whose forward is marked by lockstep::unit(), as in "h.0"; "*" stands for any
  /// one name, as in "h.*". What is in none of them is a unit of its own, the root, which is whole
  /// from the beginning of forward to the end of backward.
  std::vector<std::string> units = {};
  /// How many copies of the model the ranks form, each in parts; it divides the number of ranks. Of
  /// 4 ranks with 2 copies, 0 and 1 have the model together, and so have 2 and 3; 0 and 2 hold the
  /// same part. More than one: parameters travel within a copy alone, and a part is not lost with
  /// one rank.
  int replicas = 1;
  /// For Trainer, with one copy of the model on two ranks or more: each rank keeps a copy of the
  /// part of another one, and of what the optimizer keeps of it, where its own parts lie. That one
  /// is on another machine where there are several and none has more than half of the ranks, and
  /// otherwise the next rank. A rank that dies is then replaced in place (docs/recovery.md), unless
  /// the one that keeps its copy dies with it.
  bool peer_copies = false;
  /// How many units ahead parameters are fetched while one computes.
  int prefetch = 1;
  /// Stage parameters: give up a unit after its forward and fetch it again for backward. False:
  /// keep it in between, for one transfer less.
  bool reshard_after_forward = true;
  /// Give all ranks rank 0's weights at the start.
  bool init_sync = true;
  /// The type of whole parameters, in which forward and backward compute and which travels, as in
  /// at::kBFloat16. Parts, and what an optimizer keeps of them, stay in the type that the model was
  /// made with. Nothing: that type for all.
  std::optional<at::ScalarType> gather_type = std::nullopt;
  /// The type that gradients travel in. Means are added to the parts' gradients in the parts' type.
  /// Nothing: the type of whole parameters.
  std::optional<at::ScalarType> reduce_type = std::nullopt;
  /// Parts, their gradients and the optimizer's state lie in the memory of the host, and an
  /// optimizer changes them there. A model on the CPU has them there anyway: nothing changes.
  bool offload_optimizer = false;
  /// Where the parts of a deferred module are (lockstep/deferred.h), which has no device of its
  /// own.
  c10::Device device = c10::Device(c10::kCPU);
};

/// Which part: this rank's, or with ShardedOptions::peer_copies another rank's, as copied here.
enum class ShardPart { own, copied };

/// Bytes that this rank holds by now, all units together.
struct ShardedMemory {
  std::int64_t parameters = 0;  // whole ones that are there, and this rank's parts and copies
  std::int64_t gradients = 0;
  std::int64_t most_parameters = 0;  // the most that there ever was
  std::int64_t most_gradients = 0;
};

/// Bytes that this rank has had to send to others so far, whatever carried them.
struct ShardedTraffic {
  std::int64_t parameters = 0;  // of this rank's part, to each other rank of its copy
  std::int64_t gradients = 0;  // to each rank what that one adds up, and to the part's holders sums
  std::int64_t copies = 0;     // of the part's gradients, to the rank that keeps a copy of it
};

/// The part of ShardedDataParallel that does not depend on the module's type.
///
/// Thread rule: as for the module it serves, one thread.
class ShardedEngine {
 public:
  ShardedEngine(const ProcessGroup& group, std::shared_ptr<torch::nn::Module> module,
                const ShardedOptions& options);
  ShardedEngine(World& world, std::shared_ptr<torch::nn::Module> module,
                const ShardedOptions& options);
  ShardedEngine(ShardedEngine&&) noexcept;
  ~ShardedEngine();

  void before_forward();
  void after_forward(const std::vector<at::Tensor*>& outputs);
  /// Where forward throws.
  void abandon_forward();

  const std::vector<NamedParameter>& parameters(ShardPart part = ShardPart::own) const;
  std::vector<ParamGroup> decay_groups(double weight_decay) const;

  /// Groups of whole parameters as groups of the part's. One of which it has nothing stays, and is
  /// empty.
  std::vector<ParamGroup> parts_of(std::vector<ParamGroup> groups,
                                   ShardPart part = ShardPart::own) const;
  /// Which part of each parameter this rank has: what SnapshotStore::load_newest() reads by.
  TensorRanges ranges() const;
  /// This rank's parts as a state in parts (lockstep/tensor_range.h), which snapshots hold; buffers
  /// and frozen parameters are rank 0's. With replicas it has a share of the part, so that all
  /// ranks' states together have each element once. The tensors are the live ones.
  State state() const;
  /// The live tensors of a part alone.
  State part_state(ShardPart part) const;
  /// And with them buffers and frozen parameters, which every rank has: all that a holder of that
  /// part holds of the module.
  State held_state(ShardPart part = ShardPart::own) const;
  /// Takes over this rank's parts from such a state, of this rank, or from one with whole tensors.
  /// Throws InvalidArgument, naming a tensor, for another model.
  void load_state(const State& state);
  /// The same for the state of an optimizer over this rank's parts. Every rank calls it.
  State optimizer_state(const Optimizer& optimizer) const;
  void load_optimizer_state(Optimizer& optimizer, const State& state) const;
  /// In a world that was formed again with as many ranks, after World::abort(): every rank calls
  /// it. What was under way is dropped; parts and their gradients stay.
  void join(World& world);

  /// Whether this rank has a copy of another one's part. What is in it is up to the caller, who
  /// loads it once and then makes the same updates of it as its owner.
  bool keeps_copy() const { return copy_distance() != 0; }
  /// Rank r keeps the copy of the part of rank r + distance, modulo ranks; 0: there is none. It
  /// depends on the machines that the ranks are on, and is the same on all of them.
  int copy_distance() const;
  /// With ShardedOptions::peer_copies a process that takes another's place (World::joins()) has a
  /// copy only from here on: at the distance that the others have. Throws InvalidArgument.
  void keep_copy(int distance);
  /// Takes over the copied part from the owner's part_state(). Throws InvalidArgument.
  void load_copy(const State& state);
  /// Every rank calls it, when its parts have the gradients of an update: they go to the rank that
  /// keeps a copy of it, and those of the copied part come.
  void exchange_copy_gradients();
  /// After the update.
  void drop_copy_gradients();

  /// Leaves the module whole, for after the last step: nothing is sharded any more. Every rank
  /// calls it.
  void keep_whole();

  void zero_grad();
  at::Tensor clip_grad_norm(const ClipGradOptions& options);
  void with_whole_parameters(const std::function<void()>& call);
  ShardedMemory memory() const;
  ShardedTraffic traffic() const;

  bool requires_sync() const;
  void set_requires_sync(bool value);

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;  // backward refers to it weakly
};

/// See ShardedDataParallel::no_sync().
class [[nodiscard]] ShardedNoSync {
 public:
  explicit ShardedNoSync(ShardedEngine& engine) : engine_(engine), before_(engine.requires_sync()) {
    engine_.set_requires_sync(false);
  }
  ShardedNoSync(const ShardedNoSync&) = delete;
  ShardedNoSync& operator=(const ShardedNoSync&) = delete;
  ~ShardedNoSync() { engine_.set_requires_sync(before_); }

 private:
  ShardedEngine& engine_;
  bool before_;
};

/// Trains one model on all ranks as DistributedDataParallel does, but each rank keeps only a part
/// of what DistributedDataParallel has on every one: of the optimizer's state, of gradients, of
/// parameters, as far as the stage goes.
///
///     lockstep::ShardedDataParallel sharded(world, model, {.units = {"h.*"}});
///     lockstep::AdamW optimizer(sharded.parameters(), {.lr = 3e-4});
///     auto loss = torch::mse_loss(sharded(input), target);
///     loss.backward();  // leaves the means over all ranks, of this rank's parts
///     optimizer.step();
///
/// With the ordered reductions of CPU groups (docs/determinism.md) weights and losses have
/// DistributedDataParallel's bits, whatever the stage and the units. The norm of
/// clip_grad_norm() is added in another order.
///
/// Between steps a module's own parameters() are empty (stage parameters) and their gradients
/// undefined; parameters() of this object are what an optimizer takes.
template <typename M>
class ShardedDataParallel {
 public:
  /// Every rank constructs it at the same point. Throws InvalidArgument when the model has nothing
  /// to train, `replicas` does not divide the ranks (or is not 1 on a group), is not of one type
  /// and device, `units` names what is not there, or a type is none that gradients can have. The
  /// parameters of a deferred module are made here, one after the other, and only this rank's part
  /// of each stays.
  ShardedDataParallel(World& world, std::shared_ptr<M> module, const ShardedOptions& options = {})
      : module_(std::move(module)), engine_(world, module_, options) {}
  ShardedDataParallel(World& world, const torch::nn::ModuleHolder<M>& module,
                      const ShardedOptions& options = {})
      : ShardedDataParallel(world, module.ptr(), options) {}
  ShardedDataParallel(const ProcessGroup& group, std::shared_ptr<M> module,
                      const ShardedOptions& options = {})
      : module_(std::move(module)), engine_(group, module_, options) {}

  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    engine_.before_forward();
    struct Guard {
      ShardedEngine& engine;
      bool done = false;
      ~Guard() {
        if (!done) engine.abandon_forward();
      }
    } guard{engine_};
    auto output = module_->forward(std::forward<Arguments>(arguments)...);
    std::vector<at::Tensor*> outputs;
    auto note_output = [&](at::Tensor& tensor) { outputs.push_back(&tensor); };
    detail::walk_tensors<true>(output, note_output);
    guard.done = true;
    engine_.after_forward(outputs);
    return output;
  }

  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  M& module() { return *module_; }
  const std::shared_ptr<M>& module_ptr() const { return module_; }

  /// This rank's part of each parameter, under the parameter's name: one-dimensional, and absent
  /// where this rank has nothing of it; of a small model on many ranks it may have none at all.
  /// Backward puts the mean gradients there.
  const std::vector<NamedParameter>& parameters() const { return engine_.parameters(); }

  /// The same in two groups, as lockstep::decay_groups(): decayed are those whose whole has two
  /// dimensions or more.
  std::vector<ParamGroup> decay_groups(double weight_decay) const {
    return engine_.decay_groups(weight_decay);
  }

  /// For snapshots: see ShardedEngine.
  TensorRanges ranges() const { return engine_.ranges(); }
  State state() const { return engine_.state(); }
  void load_state(const State& state) { engine_.load_state(state); }
  State optimizer_state(const Optimizer& optimizer) const {
    return engine_.optimizer_state(optimizer);
  }
  void load_optimizer_state(Optimizer& optimizer, const State& state) const {
    engine_.load_optimizer_state(optimizer, state);
  }

  /// Of this rank's parts, and of what no_sync() has gathered.
  void zero_grad() { engine_.zero_grad(); }

  /// As lockstep::clip_grad_norm() over all parts; every rank calls it.
  at::Tensor clip_grad_norm(const ClipGradOptions& options) {
    return engine_.clip_grad_norm(options);
  }

  /// Runs `call` while the module has all its parameters, in the type of the parts, to save or to
  /// look at them. Every rank calls it; changes are lost.
  void with_whole_parameters(const std::function<void()>& call) {
    engine_.with_whole_parameters(call);
  }

  ShardedMemory memory() const { return engine_.memory(); }
  ShardedTraffic traffic() const { return engine_.traffic(); }

  /// While the returned object lives, backward adds to whole local gradients and nothing is sent;
  /// the first forward and backward after it reduce the sum.
  ShardedNoSync no_sync() { return ShardedNoSync(engine_); }

  ShardedEngine& engine() { return engine_; }

 private:
  std::shared_ptr<M> module_;
  ShardedEngine engine_;
};

template <typename M>
ShardedDataParallel(World&, const torch::nn::ModuleHolder<M>&) -> ShardedDataParallel<M>;
template <typename M>
ShardedDataParallel(World&, const torch::nn::ModuleHolder<M>&, const ShardedOptions&)
    -> ShardedDataParallel<M>;

}  // namespace lockstep
