#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/lr_schedule.h"
#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "lockstep/trainer_options.h"
#include "options.h"

namespace train_llm {

// What the options mean in the library's terms.

lockstep::AdamWOptions optimizer_options(const Options& options);

/// In Python's order: one group, or with --decay-matrices-only two.
std::vector<lockstep::ParamGroup> parameter_groups(const torch::nn::Module& module,
                                                   const Options& options);

/// `run_steps`: how many the whole run has, for schedules that end with it.
lockstep::LRScheduleOptions schedule_options(const Options& options, std::int64_t run_steps);

inline constexpr const char* kAutoType = "auto";
/// What --dtype auto stands for.
std::string usual_dtype(bool on_cpu);

lockstep::Precision precision(const Options& options);
/// Nothing without --shard.
std::optional<lockstep::ShardedOptions> sharding(const Options& options);
lockstep::Reduction reduction(const Options& options);
lockstep::CompressionOptions compression(const Options& options);

/// `config`: all options, as they are kept with the run.
lockstep::TrackingOptions tracking(const Options& options, nlohmann::json config);

}  // namespace train_llm
