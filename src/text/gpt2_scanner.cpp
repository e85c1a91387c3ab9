#include "text/gpt2_scanner.h"

#include <array>
#include <cstdint>

#include "text/unicode_class.h"
#include "text/utf8.h"

namespace lockstep {
namespace {

using Byte = unsigned char;

constexpr std::uint8_t kManyBytes = 4;  // not ASCII: look at the character

constexpr std::array<std::uint8_t, 256> byte_classes() {
  std::array<std::uint8_t, 256> classes{};
  for (int byte = 0; byte < 256; ++byte) {
    const bool letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
    const bool digit = byte >= '0' && byte <= '9';
    const bool space = byte == ' ' || (byte >= '\t' && byte <= '\r');
    const auto value = byte >= 0x80 ? kManyBytes
                       : letter     ? static_cast<std::uint8_t>(CharClass::letter)
                       : digit      ? static_cast<std::uint8_t>(CharClass::number)
                       : space      ? static_cast<std::uint8_t>(CharClass::space)
                                    : static_cast<std::uint8_t>(CharClass::other);
    classes[static_cast<std::size_t>(byte)] = value;
  }
  return classes;
}
constexpr std::array<std::uint8_t, 256> kByteClasses = byte_classes();

struct Char {
  CharClass kind;
  std::uint32_t bytes;
};

Char wide_char_at(const Byte* at, const Byte* end) {
  const Utf8Char found = decode_utf8(at, end);
  if (found.bytes == 0) return {CharClass::other, 1};
  return {CharClasses::get().of(found.code), found.bytes};
}

inline Char char_at(const Byte* at, const Byte* end) {
  const std::uint8_t kind = kByteClasses[*at];
  if (kind != kManyBytes) return {static_cast<CharClass>(kind), 1};
  return wide_char_at(at, end);
}

// Past all characters of one class.
inline const Byte* skip(const Byte* at, const Byte* end, CharClass wanted) {
  const auto wanted_byte = static_cast<std::uint8_t>(wanted);
  while (at != end) {
    const std::uint8_t kind = kByteClasses[*at];
    if (kind == wanted_byte) {
      ++at;
    } else if (kind == kManyBytes) {
      const Char next = wide_char_at(at, end);
      if (next.kind != wanted) break;
      at += next.bytes;
    } else {
      break;
    }
  }
  return at;
}

// Of 's 't 'm 'd 're 've 'll at a quote; 0 where there is none.
std::size_t contraction_at(const Byte* at, const Byte* end) {
  if (end - at < 2) return 0;
  switch (at[1]) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return end - at >= 3 && at[2] == 'e' ? 3 : 0;
    case 'l':
      return end - at >= 3 && at[2] == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

// White space goes to the piece as a whole at the end of the text; before anything else its last
// character is left for the next piece, unless it is the only one.
const Byte* end_of_space(const Byte* begin, const Byte* end) {
  const Byte* at = begin;
  const Byte* last = begin;
  while (at != end) {
    const Char next = char_at(at, end);
    if (next.kind != CharClass::space) break;
    last = at;
    at += next.bytes;
  }
  return at == end || last == begin ? at : last;
}

}  // namespace

std::size_t end_of_gpt2_piece(std::string_view text, std::size_t begin) {
  const auto* const start = reinterpret_cast<const Byte*>(text.data());
  const Byte* const end = start + text.size();
  const Byte* at = start + begin;
  if (*at == '\'') {
    if (const std::size_t length = contraction_at(at, end); length != 0) return begin + length;
  }
  const Byte* word = at;
  if (*at == ' ' && at + 1 != end) ++word;
  const Char first = char_at(word, end);
  if (first.kind == CharClass::space) {
    return static_cast<std::size_t>(end_of_space(at, end) - start);
  }
  return static_cast<std::size_t>(skip(word + first.bytes, end, first.kind) - start);
}

}  // namespace lockstep
