#include "text/byte_alphabet.h"

#include <array>

#include "text/utf8.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kLetterCount = 0x100 + 68;

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr std::array<std::uint16_t, 256> letters() {
  std::array<std::uint16_t, 256> table{};
  std::uint16_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    table[byte] = stands_for_itself(byte) ? static_cast<std::uint16_t>(byte) : next++;
  }
  return table;
}
constexpr auto kLetterOfByte = letters();

constexpr std::array<std::int16_t, kLetterCount> bytes() {
  std::array<std::int16_t, kLetterCount> table{};
  for (auto& byte : table) byte = -1;
  for (unsigned byte = 0; byte < 256; ++byte) {
    table[kLetterOfByte[byte]] = static_cast<std::int16_t>(byte);
  }
  return table;
}
constexpr auto kByteOfLetter = bytes();

}  // namespace

std::uint32_t letter_of_byte(unsigned char byte) {
  return kLetterOfByte[byte];
}

std::string name_of_bytes(std::string_view bytes) {
  std::string name;
  for (const char byte : bytes) append_utf8(name, letter_of_byte(static_cast<unsigned char>(byte)));
  return name;
}

std::optional<std::string> bytes_of_name(std::string_view name) {
  std::string bytes;
  const auto* at = reinterpret_cast<const unsigned char*>(name.data());
  const auto* const end = at + name.size();
  while (at != end) {
    const Utf8Char letter = decode_utf8(at, end);
    if (letter.bytes == 0 || letter.code >= kLetterCount || kByteOfLetter[letter.code] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kByteOfLetter[letter.code]));
    at += letter.bytes;
  }
  return bytes;
}

}  // namespace lockstep
