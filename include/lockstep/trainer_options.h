#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/callback.h"
#include "lockstep/compression.h"
#include "lockstep/ddp.h"
#include "lockstep/lr_schedule.h"
#include "lockstep/metric_watch.h"
#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "lockstep/step_profiler.h"
#include "lockstep/tracker.h"

namespace lockstep {

struct Snapshot;

enum class Precision {
  float32,
  bf16_autocast,  // weights in float32, matrix products in bfloat16
  fp16_autocast,  // the same in float16, with a gradient scaler
  bf16_weights,   // everything in bfloat16
};

/// What to do when the gradients of a step, or its loss, are not finite. The step is not applied in
/// any case. The message names the step, and the rank and parameter where it began.
enum class NonFinite {
  raise,  // throw NonFiniteStep
  skip,   // go on with the next step
  stop,   // save what was committed and return
};

/// How often something happens; both may be set.
struct Every {
  std::int64_t steps = 0;   // 0: not by steps
  std::int64_t epochs = 0;  // 0: not by epochs
};

struct SnapshotPolicy {
  /// False: no snapshots, also where there is a directory. For programs that save by themselves.
  bool enabled = true;
  /// Empty: $LOCKSTEP_RUN_DIR (set by `lockstep run`); without that nothing is saved.
  std::string directory = {};
  Every every = {};
  bool at_end = true;
  int keep_last = 3;  // 0: all
  /// Keep the snapshot with the best value of `TrainerOptions::watch`, too.
  bool keep_best = false;
  /// Write in the background, from a copy.
  bool background = true;
  /// Each node keeps a copy of its own, where nodes do not share a disk.
  bool per_node = false;
  /// Go on from the newest intact snapshot in `directory`, if there is one.
  bool resume = true;
};

enum class OnPreemption {
  raise,         // throw Preempted; lockstep::record() turns it into exit code 75
  return_early,  // fit() returns with StopReason::preempted
};

/// Whether every process keeps a copy of what the other ranks have not sent yet, where gradients
/// are compressed with error feedback. Without it a rank that dies takes its own with it, and the
/// run goes on with other bits.
enum class MirrorErrors {
  automatic,  // where the launcher replaces ranks and all of them are on one machine
  always,     // also over the network, where it costs more than compression saves
  never,
};

struct TrainerOptions {
  // How long: whichever comes first. At least one of the first two.
  std::optional<std::int64_t> epochs = std::nullopt;
  std::optional<std::int64_t> steps = std::nullopt;
  std::optional<std::chrono::milliseconds> time_limit = std::nullopt;

  /// Epochs that were done before, by a run that left weights and no snapshots (a tutorial's
  /// snapshot.pt): the run begins with this one. As with the weights, what rank 0 says counts. A
  /// snapshot that is found counts more.
  std::int64_t first_epoch = 0;

  /// What a run begins with that finds no snapshot of its own: the state of a run that another
  /// program has left in files of its own. The parts "model" and, if it is to go on, "optimizer";
  /// in the values of "trainer" the numbers "step", "epoch" and "step_in_epoch". The same on every
  /// rank.
  std::shared_ptr<const Snapshot> initial = nullptr;

  // What a step is.
  OptimizerOptions optimizer = AdamWOptions{};
  /// Groups of parameters with options of their own; unset: one group.
  std::function<std::vector<ParamGroup>(const torch::nn::Module&)> groups = {};
  LRScheduleOptions schedule = ConstantSchedule{};
  std::int64_t accumulate = 1;  // micro-batches per step and slot
  double clip_grad_norm = 0;    // 0: no clipping
  Precision precision = Precision::float32;
  /// Record the step as CUDA graphs after the first few, and replay them: the host has little to do
  /// then, which counts where steps are short (docs/trainer.md says what it takes).
  bool cuda_graph = false;
  double ema_decay = 0;  // 0: no average of the weights is kept
  NonFinite non_finite = NonFinite::raise;
  std::uint64_t seed = 0;  // of everything random inside the run; the loader has its own
  /// Logical ranks; 0: as many as there are processes when the run starts for the first time.
  int slots = 0;
  DistributedDataParallelOptions ddp = {};
  /// Each rank keeps a part of the optimizer's state, gradients or parameters, in place of `ddp`
  /// (docs/sharding.md). It needs a process for each slot. Evaluations bring the whole model
  /// together on every rank for their time.
  std::optional<ShardedOptions> shard = std::nullopt;
  /// With `shard`: fit() leaves the whole model on every rank. False: for models that do not fit;
  /// the weights are in the snapshots then.
  bool gather_at_end = true;
  /// How gradients are made smaller before they travel (docs/compression.md).
  CompressionOptions compression = {};
  MirrorErrors mirror_errors = MirrorErrors::automatic;
  /// Every so many steps the ranks compare a checksum of all they must have in common; 0: never.
  /// One that differs from most of the others is named, and replaced where the launcher can do that
  /// (docs/recovery.md). Not with `ddp.ignored`, which is each rank's own.
  std::int64_t verify_every = 100;

  // Evaluation, if fit() is given one.
  Every evaluate_every = {.epochs = 1};
  MetricWatchOptions watch = {};  // early stopping, when it has a patience; and the best snapshot

  SnapshotPolicy snapshots = {};
  OnPreemption on_preemption = OnPreemption::raise;

  // Reports.
  std::int64_t log_every = 10;    // steps between reports of the loss over all ranks
  bool log_all_ranks = false;     // each rank writes metrics/rank_R.jsonl; else rank 0 alone
  TrackingOptions tracking = {};  // TensorBoard, W&B, samples of the machine (docs/tracking.md)
  bool progress = true;
  std::string unit = "samples";  // what the loss counts; "tokens" for language models
  double flops_per_count = 0;    // with peak_flops: the progress line shows MFU
  double peak_flops = 0;         // of one process's device
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  StepProfilerOptions profile = {};

  /// Processes to start when the program was not started by a launcher.
  int devices = 1;
};

}  // namespace lockstep
