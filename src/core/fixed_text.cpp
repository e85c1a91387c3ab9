#include "core/fixed_text.h"

#include <algorithm>
#include <cstring>

namespace lockstep {
namespace {

constexpr std::uint32_t kReplacement = 0xfffd;

// Takes one character off the front of `text`, which must not be empty. A byte that does not begin
// a well-formed sequence (too short, overlong, a surrogate, beyond Unicode) is taken alone.
std::uint32_t take_utf8(std::string_view& text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  std::uint32_t code = length <= 1 ? first : first & (0x7fU >> length);
  bool valid = length > 0 && length <= text.size();
  for (std::size_t at = 1; valid && at < length; ++at) {
    const auto next = static_cast<unsigned char>(text[at]);
    valid = (next & 0xc0) == 0x80;
    code = (code << 6) | (next & 0x3fU);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (!valid || overlong || surrogate || code > 0x10ffff) {
    text.remove_prefix(1);
    return kReplacement;
  }
  text.remove_prefix(length);
  return code;
}

}  // namespace

FixedText& FixedText::add(std::string_view text) {
  const std::size_t count = std::min(text.size(), capacity_ - size_);
  if (count > 0) {
    std::memcpy(data_ + size_, text.data(), count);
  }
  size_ += count;
  data_[size_] = '\0';
  truncated_ = truncated_ || count < text.size();
  return *this;
}

FixedText& FixedText::add_decimal(std::uint64_t number) {
  char digits[20];
  std::size_t begin = sizeof digits;
  do {
    digits[--begin] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number != 0);
  return add({digits + begin, sizeof digits - begin});
}

FixedText& FixedText::add_hex(std::uint64_t number) {
  char digits[16];
  std::size_t begin = sizeof digits;
  do {
    digits[--begin] = "0123456789abcdef"[number % 16];
    number /= 16;
  } while (number != 0);
  return add("0x").add({digits + begin, sizeof digits - begin});
}

void FixedText::add_escape(std::uint32_t code_unit) {
  char escape[] = "\\u0000";
  for (int digit = 5; digit >= 2; --digit) {
    escape[digit] = "0123456789abcdef"[code_unit % 16];
    code_unit /= 16;
  }
  add({escape, 6});
}

FixedText& FixedText::add_json(std::string_view text) {
  while (!text.empty()) {
    const std::uint32_t code = take_utf8(text);
    if (code == '"' || code == '\\') {
      const char pair[] = {'\\', static_cast<char>(code)};
      add({pair, 2});
    } else if (code == '\n') {
      add("\\n");
    } else if (code >= 0x20 && code < 0x7f) {
      const char letter = static_cast<char>(code);
      add({&letter, 1});
    } else if (code < 0x10000) {
      add_escape(code);
    } else {
      add_escape(0xd800 + ((code - 0x10000) >> 10));
      add_escape(0xdc00 + ((code - 0x10000) & 0x3ff));
    }
  }
  return *this;
}

FixedText& FixedText::add_line(std::string_view text) {
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    const char shown = byte < 0x20 || byte == 0x7f ? ' ' : letter;
    add({&shown, 1});
  }
  return *this;
}

}  // namespace lockstep
