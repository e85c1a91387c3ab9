#include "text/unicode_class.h"

#include <algorithm>

namespace lockstep {

CharClasses::CharClasses() {
  std::vector<CharClass> flat(0x110000, CharClass::other);
  const auto mark = [&flat](std::span<const CodeRange> ranges, CharClass value) {
    for (const CodeRange& range : ranges) {
      std::fill(flat.begin() + range.first, flat.begin() + range.last + 1, value);
    }
  };
  mark(letter_ranges(), CharClass::letter);
  mark(number_ranges(), CharClass::number);
  mark(space_ranges(), CharClass::space);
  for (std::size_t i = 0; i < block_of_.size(); ++i) {
    Block block;
    std::copy_n(flat.begin() + static_cast<std::ptrdiff_t>(i * block.size()), block.size(),
                block.begin());
    const auto known = std::find(blocks_.begin(), blocks_.end(), block);
    block_of_[i] = static_cast<std::uint16_t>(known - blocks_.begin());
    if (known == blocks_.end()) blocks_.push_back(block);
  }
}

const CharClasses& CharClasses::get() {
  static const CharClasses table;
  return table;
}

}  // namespace lockstep
