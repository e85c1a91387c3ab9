#pragma once

#include <cstdint>
#include <string>

#include "lockstep/gpt2.h"
#include "lockstep/tokenizer.h"
#include "options.h"

namespace train_llm {

/// The directory that --model-name stands for; empty where there is none.
std::string model_directory(const Options& options);

/// The configuration of the model before its weights are there, with as many entries in the
/// vocabulary as `tokenizer_size` or more. Throws InvalidArgument.
lockstep::Gpt2Config model_config(const Options& options, std::int64_t tokenizer_size);

/// With its weights: those of --model-name or new ones. Throws InvalidArgument and SystemError.
lockstep::Gpt2 make_model(const Options& options, const lockstep::Tokenizer& tokenizer);

/// Floating-point operations for one token of a step: forward and backward, attention over
/// `seq_length` tokens included.
double flops_per_token(const lockstep::Gpt2Config& config, std::int64_t seq_length);

}  // namespace train_llm
