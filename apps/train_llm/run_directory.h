#pragma once

#include <string>

#include "lockstep/gpt2_config.h"
#include "lockstep/tokenizer.h"
#include "options.h"
#include "program_runs/run_folder.h"

namespace train_llm {

/// What a run keeps beside its snapshots and metrics, so that it can go on, speak and be exported
/// without its command line: config.json (the options), model/config.json, tokenizer/.
class RunDirectory : public program_runs::RunFolder {
 public:
  using RunFolder::RunFolder;

  /// SAVE_DIR/EXPERIMENT_NAME.
  static RunDirectory chosen(const Options& options);

  std::string model_config() const { return path() + "/model/config.json"; }
  std::string tokenizer() const { return path() + "/tokenizer"; }

  bool has_model() const;
  /// The options that the run was last started with; defaults for what they do not say. Throws
  /// InvalidArgument for a file that this program has not written.
  Options stored_options() const;

  /// Throws InvalidArgument when the run that is here has another model or tokenizer: its weights
  /// would mean something else. Dropout may differ.
  void check_same(const lockstep::Gpt2Config& model, const lockstep::Tokenizer& tokenizer) const;

  /// Throws SystemError.
  void write(const Options& options, const lockstep::Gpt2Config& model,
             const lockstep::Tokenizer& tokenizer) const;
};

/// One line about options that a run was begun with and that are others now; empty when none is.
std::string changed_options(const Options& before, const Options& now);

}  // namespace train_llm
