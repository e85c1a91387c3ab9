#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "launch/messages.h"
#include "lockstep/error.h"

/// Fields of a message that came from another machine. Each of these throws InvalidArgument, which
/// names the field, where it is missing or is not what it must be.
namespace lockstep::message_fields {

using nlohmann::json;

inline constexpr std::size_t kMaxNodes = 100'000;
inline constexpr int kMaxRank = 10'000'000;
inline constexpr std::size_t kMaxRanksInRuns = 1 << 20;  // a short text can stand for many

inline const json& field(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw InvalidArgument(concat("message has no field '", name, "'"));
  return *found;
}

inline std::string text(const json& object, const char* name) {
  const json& value = field(object, name);
  if (!value.is_string()) throw InvalidArgument(concat("message field '", name, "' is no string"));
  return value.get<std::string>();
}

inline bool flag(const json& object, const char* name) {
  const json& value = field(object, name);
  if (!value.is_boolean())
    throw InvalidArgument(concat("message field '", name, "' is no boolean"));
  return value.get<bool>();
}

template <typename T>
T number(const json& object, const char* name, std::int64_t low = 0,
         std::int64_t high = std::numeric_limits<std::int64_t>::max()) {
  const json& value = field(object, name);
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() &&
       value.get<std::uint64_t>() > static_cast<std::uint64_t>(high)) ||
      value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
    throw InvalidArgument(concat("message field '", name, "' is no integer in its range"));
  }
  return value.get<T>();
}

inline int count(const json& object, const char* name, int low = 0) {
  return number<int>(object, name, low, kMaxRank);
}

inline Epoch epoch_of(const json& object) {
  return number<Epoch>(object, "epoch");
}

inline const json& list(const json& object, const char* name) {
  const json& value = field(object, name);
  if (!value.is_array() || value.size() > kMaxNodes) {
    throw InvalidArgument(concat("message field '", name, "' is no list"));
  }
  return value;
}

inline std::vector<int> ranks(const json& object, const char* name) {
  std::vector<int> all;
  for (const json& rank : list(object, name)) {
    if (!rank.is_number_unsigned() || rank.get<std::uint64_t>() > kMaxRank) {
      throw InvalidArgument(concat("message field '", name, "' holds something that is no rank"));
    }
    all.push_back(rank.get<int>());
  }
  return all;
}

/// Ranks of a whole job, as runs of the first and the last of each: neighbours share their fate.
inline json to_runs(const std::vector<int>& ranks) {
  json runs = json::array();
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    runs.push_back({ranks[first], ranks[last]});
    first = last + 1;
  }
  return runs;
}

inline std::vector<int> runs(const json& object, const char* name) {
  std::vector<int> all;
  for (const json& run : list(object, name)) {
    const auto is_rank = [](const json& value) {
      return value.is_number_unsigned() && value.get<std::uint64_t>() <= kMaxRank;
    };
    if (!run.is_array() || run.size() != 2 || !is_rank(run[0]) || !is_rank(run[1]) ||
        run[0] > run[1] ||
        all.size() + run[1].get<std::size_t>() - run[0].get<std::size_t>() >= kMaxRanksInRuns) {
      throw InvalidArgument(concat("message field '", name, "' holds something that is no ranks"));
    }
    for (int rank = run[0].get<int>(); rank <= run[1].get<int>(); ++rank) all.push_back(rank);
  }
  return all;
}

inline std::chrono::milliseconds limit_of(const json& object) {
  return std::chrono::milliseconds(number<std::int64_t>(object, "limit_ms", 0, 86'400'000));
}

}  // namespace lockstep::message_fields
