// Reads the files of a tokenizer: tokenizer.json where the input begins with '{', otherwise
// vocab.json and merges.txt, divided by a zero byte. What is accepted encodes any text, and what it
// gives can be decoded.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/error.h"
#include "lockstep/tokenizer.h"
#include "text/tokenizer_spec.h"

using namespace lockstep;

namespace {

TokenizerSpec parse(const std::string& input) {
  if (input.starts_with('{')) return parse_tokenizer_json(input, "tokenizer.json");
  const std::size_t end = std::min(input.find('\0'), input.size());
  return parse_vocabulary({.vocabulary = input.substr(std::min<std::size_t>(1, end), end),
                           .merges = input.substr(std::min(end + 1, input.size())),
                           .vocabulary_file = "vocab.json",
                           .merges_file = "merges.txt"});
}

bool has_pattern(const TokenizerSpec& spec) {
  return std::any_of(spec.stages.begin(), spec.stages.end(), [](const SplitStage& stage) {
    return stage.kind == SplitStage::Kind::pattern;
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  try {
    TokenizerSpec spec = parse(input);
    // A regular expression can take as long as it likes.
    if (has_pattern(spec)) return 0;
    const Tokenizer tokenizer(std::move(spec));
    const auto ids = tokenizer.encode(input);
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= tokenizer.size()) std::abort();
    }
    tokenizer.decode(ids);
  } catch (const InvalidArgument&) {
  }
  return 0;
}
