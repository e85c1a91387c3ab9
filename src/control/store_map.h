#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace lockstep {

struct StoreKeyHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};

/// By key; looked up without making a string of the key.
template <typename Value>
using StoreMap = std::unordered_map<std::string, Value, StoreKeyHash, std::equal_to<>>;

/// What an entry of a container is counted with beside its bytes.
inline constexpr std::size_t kStoreEntryBytes = 96;

}  // namespace lockstep
