#pragma once

#include <string>

#include "lockstep/gpt2.h"
#include "lockstep/tokenizer.h"
#include "options.h"

namespace train_llm {

/// A trained model and what belongs to it.
struct SavedModel {
  lockstep::Gpt2 model;
  lockstep::Tokenizer tokenizer;
  Options options;   // that it was trained with; defaults for a directory of Hugging Face's
  std::string what;  // "step 300 of outputs/demo", for people
};

/// From a run directory (its newest intact snapshot), one snapshot of it, or a directory of Hugging
/// Face's transformers. Weights are float32, on the CPU. Throws InvalidArgument and SystemError.
SavedModel load_saved_model(const std::string& path);

}  // namespace train_llm
