#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

/// What the pattern of GPT-2 distinguishes.
enum class CharClass : std::uint8_t {
  other = 0,   // punctuation, symbols, marks, what is not assigned
  letter = 1,  // \p{L}
  number = 2,  // \p{N}
  space = 3,   // \s
};

struct CodeRange {
  std::uint32_t first;
  std::uint32_t last;
};

/// Of Unicode 16.0, in ascending order (unicode_ranges.cpp, which tools/unicode_ranges writes).
std::span<const CodeRange> letter_ranges();
std::span<const CodeRange> number_ranges();
std::span<const CodeRange> space_ranges();
/// \w has these beside the letters: marks, digits, letter-like numbers, connectors and a few more.
std::span<const CodeRange> other_word_ranges();

/// The class of every code point, in two steps: blocks of 256 that are alike are stored once.
class CharClasses {
 public:
  /// The one table of the process, made when it is first asked for.
  static const CharClasses& get();

  /// `code` is at most U+10FFFF.
  CharClass of(std::uint32_t code) const { return blocks_[block_of_[code >> 8]][code & 0xff]; }

 private:
  using Block = std::array<CharClass, 256>;
  CharClasses();

  std::array<std::uint16_t, 0x1100> block_of_{};
  std::vector<Block> blocks_;
};

}  // namespace lockstep
