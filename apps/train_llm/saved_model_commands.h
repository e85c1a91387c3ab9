#pragma once

#include <string>

#include "options.h"

namespace train_llm {

/// `train_llm generate`: writes on from a text. Returns the exit code.
int generate_text(const Options& options);

/// `train_llm export TARGET`: a directory of Hugging Face's layout. Returns the exit code.
int export_model(const Options& options, const std::string& target);

}  // namespace train_llm
