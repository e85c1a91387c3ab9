#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// The character that stands for a byte in files of byte-level vocabularies: printable bytes of
/// Latin-1 stand for themselves, the other 68 are U+0100 and up, in order.
std::uint32_t letter_of_byte(unsigned char byte);

/// A token's name in a vocabulary, and back; std::nullopt for a name with other characters.
std::string name_of_bytes(std::string_view bytes);
std::optional<std::string> bytes_of_name(std::string_view name);

}  // namespace lockstep
