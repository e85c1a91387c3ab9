#pragma once

#include <ATen/core/Tensor.h>

#include "comm/group_impl.h"

namespace lockstep {

/// Moves the memory of a dense CPU tensor, and what is in it, to where all ranks of the group see
/// it: an all-reduce of such tensors (of all of one, or of the same piece on every rank) copies
/// nothing. Views of the tensor follow. The memory is freed with the tensor.
///
/// Every rank of the group calls it, with tensors of one size. False on all of them, and nothing
/// has changed, where they are on several machines, or one cannot share memory.
bool move_to_shared_memory(GroupImpl& group, const at::Tensor& tensor);

}  // namespace lockstep
