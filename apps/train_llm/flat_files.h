#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/lr_schedule.h"
#include "lockstep/optimizer.h"
#include "lockstep/snapshot.h"

namespace train_llm {

// The tutorial's checkpoint: model.pt, optimizer.pt and lr_scheduler.pt, each the state_dict() of a
// Python object as torch.save writes it, and state.json with the place in the run.

/// The step that state.json in the folder names; nothing when there is no such file. Throws
/// InvalidArgument for one that is none.
std::optional<std::int64_t> flat_step(const std::string& folder);

struct FlatFormat {
  std::string prefix = {};  // of the names in model.pt: "module." for DistributedDataParallel's
  bool tied_head = true;    // lm_head.weight is written although it is no parameter of its own
  lockstep::LRScheduleOptions schedule = {};
};

/// Writes what a snapshot holds. state.json comes last, and says "running_loss": 0, because losses
/// of single ranks are not kept. Throws SystemError.
void write_flat(const std::string& folder, const lockstep::Snapshot& snapshot,
                const FlatFormat& format);

/// Reads the files, of this program or of the tutorial's, as what TrainerOptions::initial takes.
/// `optimizer` gives names to Python's numbers. Throws InvalidArgument, with the file, for files
/// that do not belong together or to this run, and SystemError.
std::shared_ptr<lockstep::Snapshot> read_flat(const std::string& folder,
                                              const lockstep::Optimizer& optimizer,
                                              const FlatFormat& format);

}  // namespace train_llm
