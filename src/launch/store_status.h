#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// A connection to the store.
struct StoreClientStatus {
  std::uint32_t pid = 0;  // on the machine at `address`, as the client told; 0: not yet
  std::string address;    // numeric
  int port = 0;
  std::vector<std::string> awaited_keys;  // the first of them; empty: it waits for nothing
  std::chrono::steady_clock::time_point last_request;  // so: since when it has been waiting
};

/// Connections that the store refused or closed, for one reason.
struct StoreRefusals {
  std::string reason;  // names the address and what it did
  std::uint64_t times = 0;
};

/// How the store of a job stands.
struct StoreStatus {
  std::uint64_t epoch = 0;
  std::size_t keys = 0;
  std::size_t bytes = 0;                  // of keys, values and buffers
  std::vector<std::string> arrival_keys;  // those that ranks leave when they join; store_arrival.h
  std::vector<StoreClientStatus> clients;
  std::vector<StoreRefusals> refusals;
};

/// Ranks that have left no trace in the store; std::nullopt where the keys do not tell. See
/// store_arrival.h.
std::optional<std::vector<int>> ranks_not_arrived(const StoreStatus& status, int world_size);

}  // namespace lockstep
