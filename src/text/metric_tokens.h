#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The characters of a text. A byte that is not UTF-8 is one of its own, beyond all others.
std::u32string characters_of(std::string_view text);

/// White space as Python's str.split() has it.
bool is_python_space(char32_t character);

/// What stands between white space.
std::vector<std::string> space_separated(std::string_view text);

/// The tokens of mteval-v13a, which BLEU is counted in.
std::vector<std::string> tokens_13a(std::string_view text);

}  // namespace lockstep
