#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exact_match.h"
#include "lockstep/token_dataset.h"
#include "lockstep/tokenizer.h"
#include "options.h"

namespace train_llm {

/// What is trained on: blocks of tokens, ready to be read by any rank.
struct Corpus {
  lockstep::Tokenizer tokenizer;
  std::shared_ptr<const lockstep::TokenDataset> training;
  std::shared_ptr<const lockstep::TokenDataset> validation;  // null: none is kept
  std::vector<Question> held_out;                            // of the embedded instructions
  std::int32_t largest_id = 0;
  std::string what;  // one line for people
};

struct CorpusOptions {
  bool embedded = false;       // the instructions inside the program, not --dataset-name
  std::string tokenizer = {};  // of an earlier start of this run; empty: by the options
  bool reports = false;        // says how far it is when it takes long
};

/// Reads and tokenises the data, or finds that it was done before. Throws InvalidArgument with the
/// file, and where it applies the record, that is wrong, and SystemError.
Corpus make_corpus(const Options& options, const CorpusOptions& corpus);

/// What a model that was trained with these options sees before it answers.
std::string prompt_text(const Options& options, const std::string& instruction,
                        const std::string& input);

}  // namespace train_llm
