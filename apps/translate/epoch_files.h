#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "lockstep/callback.h"
#include "lockstep/world.h"
#include "run_directory.h"

namespace translate {

/// Writes the tutorial's file after each epoch, from the snapshot on the disk, in the process that
/// is rank 0 then, which a recovery may change. Snapshots must not be written in the background.
class EpochFiles : public lockstep::Callback {
 public:
  EpochFiles(const lockstep::World& world, RunDirectory directory, std::string wandb_run_id)
      : world_(world), directory_(std::move(directory)), wandb_run_id_(std::move(wandb_run_id)) {}

  /// A run may have been killed between its last snapshot and the file.
  void on_start(std::int64_t step) override { write(step, /*only_missing=*/true); }
  void on_save(std::int64_t step) override { write(step, /*only_missing=*/false); }

 private:
  // A failure costs the file, not the run.
  void write(std::int64_t step, bool only_missing) const;

  const lockstep::World& world_;
  RunDirectory directory_;
  std::string wandb_run_id_;
};

}  // namespace translate
