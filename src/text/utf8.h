#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

inline const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

struct Utf8Char {
  std::uint32_t code = 0;
  std::uint32_t bytes = 0;  // 0: what stands there is no character
};

/// The character that starts at `data`, which is not at `end`. Surrogates, codes above U+10FFFF and
/// forms longer than needed are no characters.
inline Utf8Char decode_utf8(const unsigned char* data, const unsigned char* end) {
  const unsigned lead = data[0];
  if (lead < 0x80) return {lead, 1};
  const auto next = [data](std::size_t i) { return static_cast<std::uint32_t>(data[i] & 0x3f); };
  const auto follows = [data](std::size_t i) { return (data[i] & 0xc0) == 0x80; };
  const auto left = end - data;
  if (lead < 0xc2) return {};
  if (lead < 0xe0) {
    if (left < 2 || !follows(1)) return {};
    return {(lead & 0x1f) << 6 | next(1), 2};
  }
  if (lead < 0xf0) {
    if (left < 3 || !follows(1) || !follows(2)) return {};
    const std::uint32_t code = (lead & 0x0f) << 12 | next(1) << 6 | next(2);
    if (code < 0x800 || (code >= 0xd800 && code < 0xe000)) return {};
    return {code, 3};
  }
  if (lead > 0xf4 || left < 4 || !follows(1) || !follows(2) || !follows(3)) return {};
  const std::uint32_t code = (lead & 0x07) << 18 | next(1) << 12 | next(2) << 6 | next(3);
  if (code < 0x10000 || code > 0x10ffff) return {};
  return {code, 4};
}

inline void append_utf8(std::string& text, std::uint32_t code) {
  const auto byte = [&text](std::uint32_t value) { text.push_back(static_cast<char>(value)); };
  if (code < 0x80) {
    byte(code);
  } else if (code < 0x800) {
    byte(0xc0 | code >> 6);
    byte(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    byte(0xe0 | code >> 12);
    byte(0x80 | (code >> 6 & 0x3f));
    byte(0x80 | (code & 0x3f));
  } else {
    byte(0xf0 | code >> 18);
    byte(0x80 | (code >> 12 & 0x3f));
    byte(0x80 | (code >> 6 & 0x3f));
    byte(0x80 | (code & 0x3f));
  }
}

/// The place of the first byte that is not part of a character; the length where all are.
inline std::size_t valid_utf8_prefix(std::string_view text) {
  const auto* const begin = reinterpret_cast<const unsigned char*>(text.data());
  const auto* const end = begin + text.size();
  const auto* at = begin;
  while (at != end) {
    const Utf8Char found = decode_utf8(at, end);
    if (found.bytes == 0) break;
    at += found.bytes;
  }
  return static_cast<std::size_t>(at - begin);
}

}  // namespace lockstep
