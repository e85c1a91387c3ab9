#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "launch/terminal_text.h"

namespace lockstep {

/// Reading JSON that others wrote. Include this in .cpp files only: it takes seconds to parse.
/// Nothing here throws: what is missing or of another kind is absent.

using Json = nlohmann::json;

/// The value that `text` is; std::nullopt if it is no JSON, or nests so deeply that handling it
/// would need an unbounded stack.
inline std::optional<Json> parse_json(std::string_view text) {
  constexpr int kMaxDepth = 64;
  bool too_deep = false;
  const auto note_depth = [&](int depth, Json::parse_event_t, Json&) {
    too_deep |= depth > kMaxDepth;
    return depth <= kMaxDepth;
  };
  Json value = Json::parse(text.begin(), text.end(), note_depth, /*allow_exceptions=*/false);
  if (value.is_discarded() || too_deep) return std::nullopt;
  return value;
}

/// Bytes that are not UTF-8 are replaced, not refused.
inline std::string dump_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

inline const Json* field(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

inline std::optional<std::string> string_field(const Json& object, const char* name,
                                               std::size_t max_bytes) {
  const Json* value = field(object, name);
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return clipped(value->get_ref<const std::string&>(), max_bytes);
}

inline std::optional<std::int64_t> integer_field(const Json& object, const char* name) {
  const Json* value = field(object, name);
  if (value == nullptr || !value->is_number_integer()) return std::nullopt;
  if (value->is_number_unsigned() &&
      value->get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
    return std::nullopt;
  }
  return value->get<std::int64_t>();
}

}  // namespace lockstep
