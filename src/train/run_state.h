#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/compression.h"
#include "lockstep/ema.h"
#include "lockstep/grad_scaler.h"
#include "lockstep/lr_schedule.h"
#include "lockstep/metric_watch.h"
#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "lockstep/snapshot.h"
#include "lockstep/trainer_options.h"
#include "train/slots.h"

namespace lockstep {

/// Where a run is. Changes only when a step is committed.
struct RunPosition {
  std::int64_t step = 0;   // of the run, committed
  std::int64_t epoch = 0;  // under way
  std::int64_t step_in_epoch = 0;
  std::int64_t samples = 0;  // over all slots
};

/// Which part of a sharded model, and whether without what every rank has of it.
struct HeldParts {
  ShardPart part = ShardPart::own;
  bool alone = false;
};

/// Everything that lasts from one step to the next, and nothing else: what a snapshot holds, and
/// what a replaced rank will be sent.
class RunState {
 public:
  /// `sharded` is null where every rank has everything.
  RunState(std::shared_ptr<torch::nn::Module> module, ShardedEngine* sharded,
           const TrainerOptions& options);

  RunPosition position;
  Optimizer& optimizer() { return *optimizer_; }
  /// Of the copy of another rank's part; null where none is kept.
  Optimizer* copy_optimizer() { return copy_optimizer_.get(); }
  /// Those that are trained.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  LRSchedule& schedule() { return schedule_; }
  GradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }
  Ema* ema() { return ema_ ? &*ema_ : nullptr; }
  MetricWatch& watch() { return watch_; }
  /// Null without compression, and for one that remembers nothing.
  const std::shared_ptr<GradientCompression>& compression() const { return compression_; }

  /// Once the engine keeps a copy: what it is updated by.
  void make_copy_optimizer();

  /// The optimizer's step; of a copied part, too, whose gradients go with it.
  void update(const StepArguments& arguments);

  /// The tensors are the live ones. Of a sharded model it is a state in parts, and every rank
  /// calls it.
  Snapshot snapshot(const SlotShare& share, std::int64_t epoch) const;

  /// The same in two pieces, for processes that take over what others have. No rank need call them
  /// together. What is the same on all ranks, whatever each of them holds of the model:
  Snapshot values(const SlotShare& share, std::int64_t epoch) const;
  /// And what this rank holds of the model and the optimizer's state.
  Snapshot parts(const HeldParts& which = {}) const;

  /// Throws InvalidArgument, naming what differs, for a snapshot of another kind of run;
  /// `directory` is for that message. Returns lines about what the snapshot did not have.
  std::vector<std::string> restore(const Snapshot& snapshot, const std::string& directory);

  /// The same for values() alone.
  std::vector<std::string> restore_values(const Snapshot& snapshot, const std::string& directory);

  /// Takes over the copy of another rank's part from that one's parts().
  void restore_copy(const Snapshot& snapshot);

  /// Takes over what TrainerOptions::initial says. Throws InvalidArgument.
  void begin_with(const Snapshot& snapshot);

 private:
  const TrainerOptions& options_;
  const nlohmann::json& checked_values(const Snapshot& snapshot,
                                       const std::string& directory) const;
  void load_model(const State& state);
  void load_optimizer(const State& state);

  std::shared_ptr<torch::nn::Module> module_;
  ShardedEngine* sharded_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Optimizer> copy_optimizer_;
  std::vector<NamedParameter> parameters_;
  LRSchedule schedule_;
  std::optional<GradScaler> scaler_;
  std::optional<Ema> ema_;
  MetricWatch watch_;
  std::shared_ptr<GradientCompression> compression_;
};

/// What callbacks have in a snapshot: rank 0's counts, and the others' may differ.
void erase_callback_parts(Snapshot& snapshot);

}  // namespace lockstep
