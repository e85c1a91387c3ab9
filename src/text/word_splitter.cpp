#include "text/word_splitter.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "text/unicode_class.h"
#include "text/utf8.h"

namespace lockstep {
namespace {

// Word characters are looked for in every text, so each code point has its bit.
class WordCharacters {
 public:
  static const WordCharacters& get() {
    static const WordCharacters table;
    return table;
  }

  bool has(std::uint32_t code) const { return bits_[code]; }

 private:
  WordCharacters() : bits_(0x110000) {
    for (const auto ranges : {letter_ranges(), other_word_ranges()}) {
      for (const CodeRange& range : ranges) {
        std::fill(bits_.begin() + range.first, bits_.begin() + range.last + 1, true);
      }
    }
  }

  std::vector<bool> bits_;
};

enum class WordPart { word, mark, space };

}  // namespace

std::vector<std::string_view> split_words(std::string_view text) {
  const WordCharacters& words = WordCharacters::get();
  const CharClasses& classes = CharClasses::get();
  std::vector<std::string_view> pieces;
  const unsigned char* const data = bytes_of(text);
  WordPart open = WordPart::space;
  std::size_t begin = 0;
  const auto close = [&](std::size_t end) {
    if (open != WordPart::space) pieces.push_back(text.substr(begin, end - begin));
  };
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char found = decode_utf8(data + at, data + text.size());
    WordPart part = WordPart::mark;
    if (found.bytes != 0 && words.has(found.code)) part = WordPart::word;
    if (found.bytes != 0 && classes.of(found.code) == CharClass::space) part = WordPart::space;
    if (part != open) {
      close(at);
      begin = at;
      open = part;
    }
    at += found.bytes == 0 ? 1 : found.bytes;
  }
  close(text.size());
  return pieces;
}

}  // namespace lockstep
