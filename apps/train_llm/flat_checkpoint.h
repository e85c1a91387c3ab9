#pragma once

#include "flat_files.h"
#include "lockstep/callback.h"
#include "lockstep/world.h"
#include "run_directory.h"

namespace train_llm {

/// Writes the tutorial's files beside each snapshot, in the process that is rank 0 then, which a
/// recovery may change. Snapshots must not be written in the background.
class FlatCheckpoint : public lockstep::Callback {
 public:
  FlatCheckpoint(const lockstep::World& world, RunDirectory directory, FlatFormat format)
      : world_(world), directory_(std::move(directory)), format_(std::move(format)) {}

  /// A failure costs the files, not the run.
  void on_save(std::int64_t step) override;

 private:
  const lockstep::World& world_;
  RunDirectory directory_;
  FlatFormat format_;
};

}  // namespace train_llm
