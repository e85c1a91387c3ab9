// Finds and reads the files of a tokenizer.
#include <filesystem>

#include "lockstep/error.h"
#include "text/files.h"
#include "text/tokenizer_spec.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// The largest known files of tokenizers have 40 MB.
constexpr std::uint64_t kLongestFile = std::uint64_t{512} << 20;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

TokenizerSpec read_vocabulary(const fs::path& vocabulary, const fs::path& merges) {
  if (!is_file(merges)) {
    throw InvalidArgument(
        concat("'", vocabulary.string(), "' needs '", merges.string(), "', which is not there"));
  }
  TokenizerSpec spec = parse_vocabulary({.vocabulary = read_file(vocabulary, kLongestFile),
                                         .merges = read_file(merges, kLongestFile),
                                         .vocabulary_file = vocabulary,
                                         .merges_file = merges});
  const fs::path added = vocabulary.parent_path() / "added_tokens.json";
  if (is_file(added)) apply_added_tokens(spec, read_file(added, kLongestFile), added);
  return spec;
}

// The file that says most, of those that belong together.
fs::path main_file(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    if (!fs::exists(path, ignored)) {
      throw InvalidArgument(concat("the tokenizer '", path.string(),
                                   "' does not exist; it is a folder with tokenizer.json, or with "
                                   "vocab.json and merges.txt"));
    }
    return path;
  }
  for (const char* name : {"tokenizer.json", "vocab.json", "encoder.json"}) {
    if (is_file(path / name)) return path / name;
  }
  throw InvalidArgument(concat("'", path.string(),
                               "' has no tokenizer: neither tokenizer.json, nor vocab.json and "
                               "merges.txt, nor encoder.json and vocab.bpe"));
}

}  // namespace

TokenizerSpec read_tokenizer_files(const std::string& path) {
  const fs::path file = main_file(path);
  const fs::path folder = file.parent_path();
  const std::string name = file.filename();
  TokenizerSpec spec;
  if (name == "vocab.json" || name == "merges.txt") {
    spec = read_vocabulary(folder / "vocab.json", folder / "merges.txt");
  } else if (name == "encoder.json" || name == "vocab.bpe") {
    spec = read_vocabulary(folder / "encoder.json", folder / "vocab.bpe");
  } else {
    spec = parse_tokenizer_json(read_file(file, kLongestFile), file);
  }
  const fs::path config = folder / "tokenizer_config.json";
  if (is_file(config)) apply_tokenizer_config(spec, read_file(config, kLongestFile), config);
  return spec;
}

}  // namespace lockstep
