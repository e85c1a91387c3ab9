#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace lockstep {

// What dump() of nlohmann-json writes, for the values that metrics are made of, without the objects
// that it makes for each call: lines of metrics are written after every step of some runs.

inline void append_json_name(std::string& text, std::string_view name) {
  const bool plain = std::ranges::all_of(
      name, [](char c) { return c >= ' ' && c < 127 && c != '"' && c != '\\'; });
  if (!plain) {
    text += nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return;
  }
  text += '"';
  text += name;
  text += '"';
}

/// Shortest digits that give the same number again; null where it is not finite.
inline void append_json_number(std::string& text, double number) {
  if (!std::isfinite(number)) {
    text += "null";
    return;
  }
  char digits[32];
  const char* end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  const std::string_view found(digits, static_cast<std::size_t>(end - digits));
  text += found;
  // So that readers see what it was.
  if (found.find_first_of(".e") == std::string_view::npos) text += ".0";
}

inline void append_json_value(std::string& text, const nlohmann::json& value) {
  if (value.is_number_float()) {
    append_json_number(text, value.get<double>());
  } else {
    text += value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
}

}  // namespace lockstep
