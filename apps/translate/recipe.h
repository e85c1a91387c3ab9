#pragma once

#include <cstdint>
#include <string>

#include "lockstep/trainer_options.h"
#include "options.h"

namespace translate {

// What the options mean in the library's terms.

lockstep::AdamOptions optimizer_options(const Options& options);

/// `steps`: how many the whole run has. Throws InvalidArgument.
lockstep::LRScheduleOptions schedule_options(const Options& options, std::int64_t steps);

lockstep::TrackingOptions tracking_options(const Options& options, const std::string& run_id);

/// All but what the run itself has to add: callbacks and where it goes on from.
lockstep::TrainerOptions trainer_options(const Options& options, const std::string& directory,
                                         std::int64_t steps, const std::string& run_id);

/// Of the whole run, over so many pairs.
std::int64_t run_steps(const Options& options, std::int64_t pairs);

}  // namespace translate
