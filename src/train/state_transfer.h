#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/process_group.h"
#include "lockstep/snapshot.h"

namespace lockstep {

/// How a rank that has the state of a run hands it to ranks that have not: the values and the list
/// of tensors first, which everyone may read, then the tensors' bytes in chunks, each with its
/// checksum, from one rank to some others.

/// The values of all parts, and what tensors there are. Unlike JSON as text it can say infinity.
nlohmann::json describe_state(const Snapshot& snapshot);

/// A snapshot like the one described, with tensors of its own whose values are yet to come.
Snapshot allocate_state(const nlohmann::json& description);

/// Sends the tensors of the description to some ranks of the group.
void send_tensors(ProcessGroup& group, const Snapshot& snapshot, const std::vector<int>& takers);

/// Throws SystemError if what arrives is not what was sent.
void receive_tensors(ProcessGroup& group, const Snapshot& snapshot, int source);

/// How many bytes send_tensors() sends to each.
std::size_t state_bytes(const Snapshot& snapshot);

/// A checksum over all tensors, their names and the values beside them.
std::uint64_t state_checksum(const Snapshot& snapshot);

}  // namespace lockstep
