#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/process_group.h"

namespace lockstep {

/// How the tensors of a state get from ranks that have it to ranks that have not.
///
/// Their bytes are one stream, cut into chunks with a checksum each. Chunks come from ranks of the
/// taker's own machine where there are any, through memory that both map, and otherwise over the
/// group's connections. A large state comes from all of these ranks in turn, so that neither one
/// processor nor one network card is the limit. No rank holds more than a few chunks beside the
/// tensors themselves.

inline constexpr std::size_t kChunkBytes = 4 << 20;
inline constexpr std::size_t kSeveralSendersFrom = 64 << 20;

/// Who sends to `taker`: its chunk c comes from the rank at c modulo their number. `machines` has
/// one name per rank; an empty one is like no other.
std::vector<int> senders_to(int taker, const std::vector<int>& givers,
                            const std::vector<std::string>& machines, std::size_t bytes);

struct Transfer {
  std::vector<int> givers;  // every rank that has the state, in order
  std::vector<int> takers;
  std::size_t bytes = 0;  // of all tensors
};

/// Whether a rank has to call send_tensors().
bool sends(int rank, const ProcessGroup& group, const Transfer& transfer);

/// On every giver that sends, at the same time as receive_tensors() on every taker. Tensors are the
/// same in number, order and size everywhere.
void send_tensors(ProcessGroup& group, const Transfer& transfer,
                  const std::vector<at::Tensor>& tensors);

/// Throws SystemError if what arrives is not what was sent.
void receive_tensors(ProcessGroup& group, const Transfer& transfer,
                     const std::vector<at::Tensor>& tensors);

}  // namespace lockstep
