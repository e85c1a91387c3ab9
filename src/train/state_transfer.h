#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "lockstep/optimizer.h"
#include "lockstep/snapshot.h"

namespace lockstep {

/// How ranks that have the state of a run hand it to those that have not: the values and the list
/// of tensors first, which everyone may read, then the tensors' bytes in chunks (state_stream.h).

/// The values of all parts, and what tensors there are. Unlike JSON as text it can say infinity.
nlohmann::json describe_state(const Snapshot& snapshot);

/// A snapshot like the one described, whose values are yet to come. Where `own` has a tensor of the
/// same name, type and shape, that one is taken, so that nothing is held twice; others are new.
Snapshot allocate_state(const nlohmann::json& description, const Snapshot& own = {});

/// Gives an optimizer that has not made a step yet the tensors of a described part, so that they
/// can be received in their place. Throws InvalidArgument if they do not fit.
void make_room(Optimizer& optimizer, const nlohmann::json& part);

/// The tensors of a state in the order of their names, each once and without empty ones: what is to
/// be transferred.
std::vector<at::Tensor> distinct_tensors(const Snapshot& snapshot);
std::size_t total_bytes(const std::vector<at::Tensor>& tensors);

/// A checksum over all tensors, their names and the values beside them.
std::uint64_t state_checksum(const Snapshot& snapshot);

}  // namespace lockstep
