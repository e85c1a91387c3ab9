#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace lockstep {

/// The pieces of a text as Hugging Face's Whitespace cuts it, by the pattern \w+|[^\w\s]+ of Rust's
/// regular expressions. A byte that is not UTF-8 is neither.
std::vector<std::string_view> split_words(std::string_view text);

}  // namespace lockstep
