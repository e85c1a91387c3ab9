#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm_hook.h"
#include "lockstep/process_group.h"

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace lockstep {

class World;
struct State;

/// Ways to train in which ranks do not talk in every step. Between two averages each rank has
/// weights of its own: a rank that dies cannot be replaced in place with the same bits, and where
/// the launcher would try, rank 0 says so once. docs/compression.md says how to save such a run.

struct PostLocalSGDOptions {
  /// Steps in which gradients are reduced over all ranks, as without the hook.
  std::int64_t start_localSGD_iter = 0;
  /// Afterwards, reduce gradients within the subgroup; false: not at all.
  bool post_local_gradient_allreduce = true;
};

/// Python's post_localSGD_hook: gradients are reduced over all ranks at first, then within a
/// subgroup (the ranks of a machine, say), while a PeriodicModelAverager averages weights.
///
///     lockstep::PostLocalSGD local(world, machine_group, {.start_localSGD_iter = 100});
///     ddp.register_comm_hook(local.hook());
///     lockstep::PeriodicModelAverager averager(world, {.period = 4, .warmup_steps = 100});
///     ...
///     optimizer.step();
///     averager.average_parameters(model->parameters());
class PostLocalSGD {
 public:
  /// `subgroup` may be one that this rank is not a member of only where gradients stay local.
  PostLocalSGD(World& world, const ProcessGroup& subgroup, const PostLocalSGDOptions& options);

  /// Shares the count of steps with this object. The sums are the backend's own.
  CommHookFunction hook() const;

  State state() const;
  void load_state(const State& state);

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

struct PeriodicModelAveragerOptions {
  std::int64_t period = 1;
  std::int64_t warmup_steps = 0;  // that of PostLocalSGDOptions::start_localSGD_iter
};

/// Python's PeriodicModelAverager: replaces parameters by their mean over all ranks, every so many
/// steps after the first ones.
class PeriodicModelAverager {
 public:
  PeriodicModelAverager(World& world, const PeriodicModelAveragerOptions& options);

  /// After each step of the optimizer, on every rank. Parameters without a gradient are left alone.
  /// Whether it has averaged.
  bool average_parameters(const std::vector<at::Tensor>& parameters);

  State state() const;
  void load_state(const State& state);

 private:
  ProcessGroup group_;
  PeriodicModelAveragerOptions options_;
  std::int64_t step_ = 0;
};

struct OuterOptimizerOptions {
  std::int64_t every = 100;  // inner steps from one outer step to the next
  double lr = 0.7;
  double momentum = 0.9;
  bool nesterov = true;
};

/// Outer steps of DiLoCo (Douillard et al., 2023): every rank trains alone with an optimizer of its
/// own; after `every` steps the mean of what they have moved is the gradient of an SGD with
/// momentum, whose weights all ranks take. Only then something travels: once the model.
///
///     lockstep::OuterOptimizer outer(world, *model, {.every = 200});
///     ...
///     optimizer.step();   // no DistributedDataParallel
///     outer.step();
class OuterOptimizer {
 public:
  /// All ranks have the same weights by then.
  OuterOptimizer(World& world, const torch::nn::Module& module,
                 const OuterOptimizerOptions& options = {});
  ~OuterOptimizer();
  OuterOptimizer(const OuterOptimizer&) = delete;
  OuterOptimizer& operator=(const OuterOptimizer&) = delete;

  /// After each step of the inner optimizer, on every rank. Whether it was an outer step: then all
  /// ranks have the same weights, which is the moment to save.
  bool step();

  /// Outer weights, momentum and count: the same on every rank.
  State state() const;
  void load_state(const State& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
