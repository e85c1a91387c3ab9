#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/trainer_options.h"
#include "lockstep/training_task.h"
#include "lockstep/world.h"
#include "train/slot_sums.h"

namespace lockstep {

/// Evaluates on all ranks: every sample exactly once, sums and counts added over all slots in slot
/// order. The module is in evaluation mode meanwhile and no gradients are recorded.
///
/// Every rank calls it. Throws InvalidArgument when ranks report different metrics.
std::map<std::string, double> evaluate(World& world, torch::nn::Module& module,
                                       EvaluationTask& task, const TrainerOptions& options,
                                       const SlotShare& share, SlotSums& sums, std::int64_t step);

/// Checks that all ranks of the group have the same names, which are about to be added up by their
/// places; `names` of a rank that has none is ignored. Returns the names. Every rank calls it.
std::vector<std::string> agree_on_names(ProcessGroup& group, const std::vector<std::string>& names,
                                        const std::string& what);

}  // namespace lockstep
