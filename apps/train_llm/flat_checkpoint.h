#pragma once

#include "flat_files.h"
#include "lockstep/callback.h"
#include "run_directory.h"

namespace train_llm {

/// Writes the tutorial's files beside each snapshot, on one rank. Snapshots must not be written in
/// the background.
class FlatCheckpoint : public lockstep::Callback {
 public:
  FlatCheckpoint(RunDirectory directory, FlatFormat format)
      : directory_(std::move(directory)), format_(std::move(format)) {}

  /// A failure costs the files, not the run.
  void on_save(std::int64_t step) override;

 private:
  RunDirectory directory_;
  FlatFormat format_;
};

}  // namespace train_llm
