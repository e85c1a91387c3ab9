#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// What is known of a store when the question is who has not come.
struct StoreTraces {
  std::vector<std::string> arrival_keys;  // those present for which is_arrival_key() holds
  std::vector<std::string> awaited_keys;  // what clients wait for, in any order
  bool any_client = false;
};

/// Whether a key is one that a rank leaves when it joins the group of all: Gloo's address under
/// `/default_pg/0//cpu//0/<rank>`, or this library's own mark `/lockstep/arrived/<rank>`; either
/// may come after `/epoch_<number>`.
bool is_arrival_key(std::string_view key);

/// Ranks of a job that have left no trace in the store, in ascending order.
///
/// std::nullopt where the keys do not tell: with NCCL alone only rank 0 leaves one (the others wait
/// for it), and a program need not form a group at all. Without any client nobody has come.
std::optional<std::vector<int>> ranks_not_arrived(const StoreTraces& traces, int world_size);

}  // namespace lockstep
