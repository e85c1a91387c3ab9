#include "control/store_waits.h"

#include <algorithm>
#include <utility>

namespace lockstep {

void StoreWaits::await(StoreClientId client, std::string_view key) {
  by_key_.try_emplace(std::string(key)).first->second.push_back(client);
  Wait& wait = by_client_[client];
  ++wait.missing;
  wait.keys.emplace_back(key);
  bytes_ += 2 * (key.size() + kStoreEntryBytes);
}

void StoreWaits::stop(StoreClientId client) {
  const auto wait = by_client_.find(client);
  if (wait == by_client_.end()) return;
  for (const std::string& key : wait->second.keys) {
    bytes_ -= key.size() + kStoreEntryBytes;
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) continue;
    bytes_ -= std::erase(found->second, client) * (key.size() + kStoreEntryBytes);
    if (found->second.empty()) by_key_.erase(found);
  }
  by_client_.erase(wait);
}

std::vector<StoreClientId> StoreWaits::key_came(std::string_view key) {
  std::vector<StoreClientId> free;
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return free;
  const auto clients = std::move(found->second);
  by_key_.erase(found);
  for (const StoreClientId client : clients) {
    if (one_came(client, key.size())) free.push_back(client);
  }
  return free;
}

std::vector<StoreClientId> StoreWaits::element_came(std::string_view key) {
  std::vector<StoreClientId> free;
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return free;
  auto& clients = found->second;
  while (free.empty() && !clients.empty()) {
    const StoreClientId client = clients.front();
    clients.pop_front();
    if (one_came(client, key.size())) free.push_back(client);
  }
  if (clients.empty()) by_key_.erase(found);
  return free;
}

std::vector<std::string> StoreWaits::awaited_keys(StoreClientId client, std::size_t limit) const {
  std::vector<std::string> missing;
  const auto wait = by_client_.find(client);
  if (wait == by_client_.end()) return missing;
  for (const std::string& key : wait->second.keys) {
    if (missing.size() == limit) break;
    const auto found = by_key_.find(key);
    if (found != by_key_.end() && std::ranges::find(found->second, client) != found->second.end()) {
      missing.push_back(key);
    }
  }
  return missing;
}

// An entry of the client has left by_key_. True when it was the last.
bool StoreWaits::one_came(StoreClientId client, std::size_t key_bytes) {
  bytes_ -= key_bytes + kStoreEntryBytes;
  const auto wait = by_client_.find(client);
  if (--wait->second.missing > 0) return false;
  for (const std::string& key : wait->second.keys) bytes_ -= key.size() + kStoreEntryBytes;
  by_client_.erase(wait);
  return true;
}

}  // namespace lockstep
