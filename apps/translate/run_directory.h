#pragma once

#include <cstdint>
#include <string>

#include "lockstep/transformer.h"
#include "options.h"
#include "program_runs/run_folder.h"
#include "vocabulary.h"

namespace translate {

/// What a run keeps beside its snapshots and metrics, so that it can go on and translate without
/// its command line: config.json (the options), the vocabularies, weights/ (the tutorial's files).
class RunDirectory : public program_runs::RunFolder {
 public:
  using RunFolder::RunFolder;

  std::string weights() const { return path() + "/weights"; }

  /// The options that the run was last started with. Throws InvalidArgument.
  Options stored_options() const;

  /// Throws SystemError.
  void write(const Options& options, const Vocabulary& source, const Vocabulary& target) const;

  /// Moves snapshots, and the files of epochs after this one, into a folder of their own, so that
  /// the run can go on from there. Returns the folder; empty: there was nothing to move. Throws
  /// SystemError.
  std::string set_aside_after(std::int64_t epoch) const;
};

lockstep::TransformerConfig model_config(const Options& options, const Vocabulary& source,
                                         const Vocabulary& target);

}  // namespace translate
