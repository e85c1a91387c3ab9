#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/sentence_pairs.h"
#include "options.h"
#include "pair_dataset.h"
#include "vocabulary.h"

namespace translate {

/// What is learned from, and what it is tried out on.
struct Corpus {
  Vocabulary source;
  Vocabulary target;
  std::shared_ptr<const PairDataset> training;
  std::shared_ptr<const PairDataset> validation;  // null: none is kept
  std::vector<lockstep::SentencePair> held_out;   // the validation's sentences, in its order
  std::string what;                               // one line for people
};

/// Reads the pairs and splits them by the seed, the same on every rank. Vocabularies are those in
/// `directory`, where an earlier start of the run has left them, or else made from the pairs for
/// training. Throws InvalidArgument, naming the pair that is wrong, and SystemError.
Corpus make_corpus(const Options& options, const std::string& directory);

/// Throws InvalidArgument where the tokens and their marks do not fit: `what` is "pair 7" or
/// "sentence 1", `side` "source" or "target"; the message ends with the advice.
void check_length(const std::string& what, const char* side, const std::string& sentence,
                  std::size_t tokens, const Options& options, const char* advice);

}  // namespace translate
