#pragma once

#include <map>
#include <optional>
#include <string>

#include "lockstep/tracker.h"

namespace lockstep {

/// What a run of W&B is called and where it is.
struct WandbRun {
  std::string id;        // "<experiment>-3"
  std::string name;      // "rank-3"
  std::string folder;    // holds wandb/
  std::string code;      // a folder whose sources are the run's; empty: none
  WandbOptions options;  // with all that was to be found out
};

/// Fills in what the options leave open, from W&B's own variables. std::nullopt: this rank writes
/// no run. Throws InvalidArgument for a variable whose value W&B does not know.
std::optional<WandbRun> wandb_run(const TrackerOptions& options,
                                  const std::map<std::string, std::string>& environment);

/// The variables of this process that wandb_run() looks at.
std::map<std::string, std::string> wandb_environment();

}  // namespace lockstep
