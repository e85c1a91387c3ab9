#include "recipe.h"

#include <algorithm>
#include <chrono>

#include "command_line.h"
#include "lockstep/error.h"

namespace translate {

using lockstep::concat;

lockstep::AdamOptions optimizer_options(const Options& options) {
  const double usual = options.schedule == "noam" ? 1 : 1e-4;
  return {.lr = options.lr > 0 ? options.lr : usual,
          .betas = {0.9, options.beta2},
          .eps = options.epsilon};
}

lockstep::LRScheduleOptions schedule_options(const Options& options, std::int64_t steps) {
  const std::int64_t usual = options.schedule == "noam" ? 4000 : 0;
  const std::int64_t warmup = options.warmup >= 0 ? options.warmup : usual;
  if (options.schedule == "noam") {
    if (warmup == 0) {
      throw lockstep::InvalidArgument("--warmup is 0; with --schedule noam it must be at least 1");
    }
    return lockstep::NoamSchedule{.model_size = options.d_model, .warmup_steps = warmup};
  }
  if (options.schedule == "constant") return lockstep::ConstantSchedule{.warmup_steps = warmup};
  if (warmup >= steps) {
    throw lockstep::InvalidArgument(
        concat("--warmup is ", warmup, ", but the run has ", steps, " steps in all; lower it"));
  }
  return lockstep::CosineSchedule{.warmup_steps = warmup, .total_steps = steps, .min_factor = 0.02};
}

lockstep::TrackingOptions tracking_options(const Options& options, const std::string& run_id) {
  lockstep::TrackingOptions tracking;
  lockstep::choose_sinks(tracking, options.track);
  tracking.wandb_options.experiment = run_id;
  tracking.config = effective_config(options);
  return tracking;
}

lockstep::TrainerOptions trainer_options(const Options& options, const std::string& directory,
                                         std::int64_t steps, const std::string& run_id) {
  lockstep::TrainerOptions training;
  if (options.max_steps == 0) training.epochs = options.epochs;
  training.steps = steps;
  if (options.time_limit > 0) {
    training.time_limit =
        std::chrono::milliseconds(static_cast<std::int64_t>(1000 * options.time_limit));
  }
  training.optimizer = optimizer_options(options);
  training.schedule = schedule_options(options, steps);
  training.accumulate = options.grad_accum;
  training.clip_grad_norm = options.grad_clip;
  training.precision =
      options.dtype == "fp32" ? lockstep::Precision::float32 : lockstep::Precision::bf16_autocast;
  training.seed = static_cast<std::uint64_t>(options.seed);
  training.slots = static_cast<int>(options.slots);
  // Without a frequency after each epoch, and at the end of the run.
  training.evaluate_every = {.steps = options.eval_freq != 0 ? options.eval_freq : steps,
                             .epochs = options.eval_freq == 0 ? 1 : 0};
  training.snapshots = {.directory = directory,
                        .every = {.steps = options.ckpt_freq, .epochs = 1},
                        .keep_last = static_cast<int>(options.keep_last),
                        .background = false};  // the epochs' files are made of them
  training.log_every = options.log_freq;
  training.tracking = tracking_options(options, run_id);
  training.progress = !options.no_progress;
  training.unit = "tokens";
  return training;
}

std::int64_t run_steps(const Options& options, std::int64_t pairs) {
  const auto parts = [](std::int64_t whole, std::int64_t part) {
    return (whole + part - 1) / part;
  };
  const std::int64_t batches = parts(parts(pairs, options.slots), options.batch_size);
  const std::int64_t all = parts(batches, options.grad_accum) * options.epochs;
  return options.max_steps > 0 ? std::min(all, options.max_steps) : all;
}

}  // namespace translate
