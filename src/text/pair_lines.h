#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "lockstep/sentence_pairs.h"

namespace lockstep {

using TakePair = std::function<void(SentencePair&&)>;

/// A text and the name of its file, for messages.
struct NamedText {
  std::string_view text;
  const std::string& file;
};

/// A table with tabs: a pair a line; lines that are blank are none. Throws InvalidArgument with
/// the file and the line.
void parse_pair_table(const NamedText& table, const std::string& source_name,
                      const std::string& target_name, const TakePair& take);

/// Two texts whose lines belong together. Throws InvalidArgument, with both counts where they
/// differ.
void parse_parallel_lines(const NamedText& sources, const NamedText& targets, const TakePair& take);

/// Without the white space around it.
std::string_view trimmed_sentence(std::string_view text);

}  // namespace lockstep
