#include "shard/part_copy.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "comm/group_impl.h"
#include "lockstep/error.h"

namespace lockstep {

void check_peer_copies(const ShardedOptions& options, int ranks) {
  if (!options.peer_copies) return;
  if (options.replicas > 1) {
    throw InvalidArgument(concat("ShardedDataParallel: peer_copies is set with replicas ",
                                 options.replicas,
                                 ", which have each part on several ranks already; leave one out"));
  }
  if (ranks < 2) {
    throw InvalidArgument(
        "ShardedDataParallel: peer_copies is set on one rank; a copy at another takes two");
  }
}

std::vector<std::string> machines_of(const ProcessGroup& group) {
  std::vector<std::string> machines;
  const GroupImpl& impl = *group.impl();
  for (const int rank : impl.global_ranks) {
    // One that is no lockstep program has no name.
    if (!impl.peers->knows(rank)) return std::vector<std::string>(impl.global_ranks.size());
    machines.push_back(impl.peers->identity(rank).machine);
  }
  return machines;
}

PartCopy::PartCopy(const Units& units, ShardExchange& exchange, int distance)
    : exchange_(exchange), places_{.ranks = exchange.ranks(), .distance = distance} {
  const c10::AutoGradMode no_graph(false);
  const int copied = places_.copied_at(exchange.part());
  for (const auto& own : units) {
    if (!own) continue;
    Unit unit{.own = own.get(),
              .part = {},
              .places = own->layout().pieces(copied),
              .first = pieces_.size()};
    if (!unit.places.empty()) unit.part = at::zeros_like(own->part());
    for (const FlatLayout::Piece& piece : unit.places) {
      pieces_.push_back({.name = own->parameter_name(piece.parameter),
                         .tensor = unit.part.narrow(0, piece.at, piece.count).detach()});
      pieces_.back().tensor.set_requires_grad(true);
    }
    units_.push_back(std::move(unit));
  }
}

void PartCopy::load(const State& state) {
  const c10::AutoGradMode no_graph(false);
  for (const NamedParameter& piece : pieces_) {
    const auto found = state.tensors.find(piece.name);
    if (found == state.tensors.end() || found->second.sizes() != piece.tensor.sizes()) {
      throw InvalidArgument(concat("the copy of another rank's part does not fit: '", piece.name,
                                   "' is missing or of another size; all ranks must run the same "
                                   "program"));
    }
  }
  for (const NamedParameter& piece : pieces_) {
    piece.tensor.detach().copy_(state.tensors.at(piece.name));
  }
}

// In the order of units, on every rank. One at a time, so that no more than a unit's part is on its
// way through a device.
void PartCopy::exchange_gradients() {
  const c10::AutoGradMode no_graph(false);
  for (const Unit& unit : units_) {
    at::Tensor sent, received;
    if (!unit.own->pieces().empty()) sent = unit.own->part_gradient();
    if (!unit.places.empty()) received = at::empty_like(unit.part);
    exchange_.pass({.sent = sent,
                    .to = places_.keeper_of(exchange_.part()),
                    .received = received,
                    .from = places_.copied_at(exchange_.part())});
    for (std::size_t i = 0; i < unit.places.size(); ++i) {
      pieces_[unit.first + i].tensor.mutable_grad() =
          received.narrow(0, unit.places[i].at, unit.places[i].count);
    }
  }
}

void PartCopy::drop_gradients() {
  for (const NamedParameter& piece : pieces_) piece.tensor.mutable_grad() = at::Tensor();
}

std::int64_t PartCopy::parameter_bytes() const {
  std::int64_t bytes = 0;
  for (const Unit& unit : units_) {
    if (unit.part.defined()) bytes += static_cast<std::int64_t>(unit.part.nbytes());
  }
  return bytes;
}

std::int64_t PartCopy::gradient_bytes() const {
  std::int64_t bytes = 0;
  for (const Unit& unit : units_) {
    const bool has = !unit.places.empty() && pieces_[unit.first].tensor.grad().defined();
    if (has) bytes += static_cast<std::int64_t>(unit.part.nbytes());
  }
  return bytes;
}

}  // namespace lockstep
