#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "control/store_map.h"

namespace lockstep {

using StoreClientId = std::uint64_t;

/// Which clients of a store wait for which keys. A client waits until all of its keys have come;
/// one named twice has to come once. Not thread-safe.
class StoreWaits {
 public:
  /// Adds a key to those the client waits for.
  void await(StoreClientId client, std::string_view key);

  /// The client waits for nothing any more.
  void stop(StoreClientId client);

  bool waiting(StoreClientId client) const { return by_client_.contains(client); }

  /// The key is there. Returns the clients for whom it was the last one, in order of arrival.
  std::vector<StoreClientId> key_came(std::string_view key);

  /// The queue has one element more: clients that wait for it go on in order of arrival, until one
  /// waits for nothing else; that one is returned.
  std::vector<StoreClientId> element_came(std::string_view key);

  /// Keys that the client waits for and that have not come, in the order it named them; the first
  /// `limit` of them.
  std::vector<std::string> awaited_keys(StoreClientId client, std::size_t limit) const;

  /// Memory in use, with an allowance per entry.
  std::size_t bytes() const { return bytes_; }

 private:
  struct Wait {
    std::size_t missing = 0;        // entries in by_key_
    std::vector<std::string> keys;  // all that were awaited, those that came included
  };

  bool one_came(StoreClientId client, std::size_t key_bytes);

  StoreMap<std::deque<StoreClientId>> by_key_;  // in order of arrival; none of them empty
  std::unordered_map<StoreClientId, Wait> by_client_;
  std::size_t bytes_ = 0;
};

}  // namespace lockstep
