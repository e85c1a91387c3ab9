#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>
#include <system_error>

namespace lockstep {

/// The number that `text` is, all of it, in decimal; std::nullopt for anything else: no blanks, no
/// plus sign, no trailing letters, nothing that `Integer` cannot hold.
template <std::integral Integer>
std::optional<Integer> parse_integer(std::string_view text) {
  Integer value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) {
    return std::nullopt;
  }
  return value;
}

}  // namespace lockstep
