#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// A sentence and its translation, in UTF-8.
struct SentencePair {
  std::string source;
  std::string target;

  bool operator==(const SentencePair&) const = default;
};

struct SentencePairOptions {
  // A table with tabs (.tsv, .txt), JSON (a list, or an object a line), Parquet, Arrow, or a folder
  // of such files, as `datasets` and the hub have them. With `target_path`: the sources, one a
  // line.
  std::string path;
  std::string target_path;  // the targets, one a line; empty: `path` has both

  // What the fields are called: columns, or keys of an object "translation", as OPUS Books has it.
  // Empty: "source" and "target". A table whose first line does not have both names has no header:
  // then its first column is the source, its second the target.
  std::string source_language;
  std::string target_language;

  std::string split = "train";  // of a folder that has several (see TextSourceOptions)
};

/// All pairs, in the order of the files. White space around a sentence is taken away; pairs of
/// which both sides are empty are left out. Throws InvalidArgument for input that is not as it
/// should be, naming the file and the line or record, and where there is no pair at all.
std::vector<SentencePair> read_sentence_pairs(const SentencePairOptions& options);

/// The first `count` pairs of a made-up language: small English sentences with dates, prices and
/// numbers, and what a rule makes of them. Its verbs stand at the end, adjectives follow their
/// nouns and agree with them, numbers count in twenties with the units first
/// (docs/translation_data.md). Depends on the arguments alone, on every machine. All sources are
/// distinct, so that any part of the list can be held out; a longer list begins with a shorter one.
std::vector<SentencePair> embedded_sentence_pairs(std::size_t count, std::uint64_t seed = 0);

}  // namespace lockstep
