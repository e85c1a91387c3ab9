#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace lockstep {

/// Reading JSON that others wrote; for sources only. Nothing here throws.

/// The value that `text` is; std::nullopt if it is none, or nests so deeply that handling it would
/// need an unbounded stack.
inline std::optional<nlohmann::json> parse_bounded(std::string_view text) {
  using nlohmann::json;
  constexpr int kMaxDepth = 64;
  bool too_deep = false;
  const auto note_depth = [&](int depth, json::parse_event_t, json&) {
    too_deep |= depth > kMaxDepth;
    return depth <= kMaxDepth;
  };
  json value = json::parse(text.begin(), text.end(), note_depth, /*allow_exceptions=*/false);
  if (value.is_discarded() || too_deep) return std::nullopt;
  return value;
}

/// Bytes that are not UTF-8 are replaced. A page can take it for text only: '<' stays as it is.
inline std::string dump_text(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

inline double number_of(const nlohmann::json& object, const char* name, double otherwise = 0) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : otherwise;
}

/// Rounded, and within what an integer can hold.
inline std::int64_t whole_of(const nlohmann::json& object, const char* name) {
  const double value = number_of(object, name);
  return std::isnan(value) ? 0 : static_cast<std::int64_t>(std::clamp(value, -9e15, 9e15));
}

inline std::string text_of(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// null where it is not finite, which JSON has no word for.
inline nlohmann::json finite(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

}  // namespace lockstep
