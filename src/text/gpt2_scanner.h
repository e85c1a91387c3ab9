#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep {

/// GPT-2's pattern, as files of tokenizers write it.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Where the piece ends that starts at `begin`, which is before the end of the text. Pieces are the
/// matches of GPT-2's pattern; they follow each other without gaps. A byte that is not part of a
/// character is one that is neither letter, number nor space.
///
/// Written by hand because it is three times as fast as the regular expression in PCRE2's JIT.
std::size_t end_of_gpt2_piece(std::string_view text, std::size_t begin);

}  // namespace lockstep
