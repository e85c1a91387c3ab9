#pragma once

#include <fstream>
#include <string>

#include "lockstep/error.h"
#include "lockstep/tokenizer.h"
#include "tests/support/refusal.h"

namespace lockstep::testing {

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Has a token for each byte, and merges that a few English words teach.
inline Tokenizer small_tokenizer(std::int64_t vocab_size = 290) {
  const std::string_view texts[] = {"the cat and the dog and the bird sat on the mat",
                                    "then they went to the other end of the garden"};
  return train_tokenizer(texts, {.vocab_size = vocab_size});
}

}  // namespace lockstep::testing
