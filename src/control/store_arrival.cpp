#include "control/store_arrival.h"

#include <algorithm>

#include "core/parse_integer.h"

namespace lockstep {
namespace {

constexpr std::string_view kDigits = "0123456789";

// The key without "/epoch_<number>", under which the second and later worlds of one process meet.
std::string_view without_epoch(std::string_view key) {
  constexpr std::string_view kEpoch = "/epoch_";
  if (!key.starts_with(kEpoch)) return key;
  const auto end = key.find_first_not_of(kDigits, kEpoch.size());
  if (end == kEpoch.size() || end == std::string_view::npos) return key;
  return key.substr(end);
}

std::optional<int> rank_of(std::string_view key) {
  key = without_epoch(key);
  for (const std::string_view prefix : {"/default_pg/0//cpu//0/", "/lockstep/arrived/"}) {
    if (!key.starts_with(prefix)) continue;
    const auto rank = parse_integer<int>(key.substr(prefix.size()));
    if (rank && *rank >= 0) return rank;
  }
  return std::nullopt;
}

// Rank 0 leaves NCCL's unique id there; everybody else waits for it.
bool is_nccl_id(std::string_view key) {
  return without_epoch(key).starts_with("/default_pg/0//cuda//");
}

}  // namespace

bool is_arrival_key(std::string_view key) {
  return rank_of(key).has_value();
}

std::optional<std::vector<int>> ranks_not_arrived(const StoreTraces& traces, int world_size) {
  std::vector<bool> arrived(world_size, false);
  bool known = !traces.any_client;
  for (const std::string& key : traces.arrival_keys) {
    const auto rank = rank_of(key);
    if (!rank) continue;
    known = true;
    if (*rank < world_size) arrived[*rank] = true;
  }
  const auto awaits = [&](auto rule) { return std::ranges::any_of(traces.awaited_keys, rule); };
  known = known || awaits(is_arrival_key);
  if (!known) {
    if (world_size > 0 && awaits(is_nccl_id)) return std::vector<int>{0};
    return std::nullopt;
  }
  std::vector<int> missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (!arrived[rank]) missing.push_back(rank);
  }
  return missing;
}

}  // namespace lockstep
