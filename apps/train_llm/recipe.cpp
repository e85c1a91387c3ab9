#include "recipe.h"

#include <utility>

#include "lockstep/error.h"

namespace train_llm {

using lockstep::concat;
using lockstep::InvalidArgument;

lockstep::AdamWOptions optimizer_options(const Options& options) {
  return {.lr = options.lr,
          .betas = {options.beta1, options.beta2},
          .eps = options.epsilon,
          .weight_decay = options.weight_decay};
}

std::vector<lockstep::ParamGroup> parameter_groups(const torch::nn::Module& module,
                                                   const Options& options) {
  if (options.decay_matrices_only) return lockstep::decay_groups(module, options.weight_decay);
  return {lockstep::ParamGroup{.parameters = lockstep::named_parameters(module)}};
}

lockstep::LRScheduleOptions schedule_options(const Options& options, std::int64_t run_steps) {
  if (options.schedule == "constant") {
    return lockstep::ConstantSchedule{.warmup_steps = options.warmup};
  }
  if (options.schedule == "inverse-sqrt") {
    return lockstep::InverseSqrtSchedule{.warmup_steps = options.warmup};
  }
  const std::int64_t total = options.schedule_steps != 0 ? options.schedule_steps : run_steps;
  if (options.warmup >= total) {
    throw InvalidArgument(concat("--warmup is ", options.warmup, ", but the schedule has ", total,
                                 " steps in all; set --schedule-steps or lower --warmup"));
  }
  if (options.schedule == "linear") {
    return lockstep::LinearSchedule{.warmup_steps = options.warmup, .total_steps = total};
  }
  return lockstep::CosineSchedule{
      .warmup_steps = options.warmup, .total_steps = total, .min_factor = options.min_lr_factor};
}

// Measured in docs/train_llm.md.
std::string usual_dtype(bool on_cpu) {
  return on_cpu ? "fp32" : "bf16";
}

lockstep::Precision precision(const Options& options) {
  if (options.dtype == "bf16") return lockstep::Precision::bf16_weights;
  if (options.dtype == "bf16-autocast") return lockstep::Precision::bf16_autocast;
  if (options.dtype == "fp16") return lockstep::Precision::fp16_autocast;
  return lockstep::Precision::float32;  // also bf16-mixed: see sharding()
}

std::optional<lockstep::ShardedOptions> sharding(const Options& options) {
  if (options.shard == 0) return std::nullopt;
  lockstep::ShardedOptions sharding{.stage = static_cast<lockstep::ShardStage>(options.shard),
                                    .units = {"h.*"},
                                    .replicas = static_cast<int>(options.shard_replicas),
                                    .peer_copies = options.shard_copies};
  if (options.dtype == "bf16-mixed") {
    sharding.gather_type = at::kBFloat16;
    sharding.reduce_type = at::kFloat;
  }
  return sharding;
}

lockstep::Reduction reduction(const Options& options) {
  if (options.reduction == "ordered") return lockstep::Reduction::ordered;
  if (options.reduction == "native") return lockstep::Reduction::native;
  return lockstep::Reduction::automatic;
}

lockstep::CompressionOptions compression(const Options& options) {
  try {
    return lockstep::parse_compression(options.compress);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("--compress: ", error.what()));
  }
}

lockstep::TrackingOptions tracking(const Options& options, nlohmann::json config) {
  using Runs = lockstep::WandbOptions::Runs;
  lockstep::TrackingOptions tracking;
  lockstep::choose_sinks(tracking, options.track);
  tracking.wandb_options.runs = options.wandb_runs == "rank"   ? Runs::rank
                                : options.wandb_runs == "node" ? Runs::node
                                                               : Runs::rank_0;
  tracking.wandb_options.experiment = options.experiment_name;
  tracking.config = std::move(config);
  return tracking;
}

}  // namespace train_llm
