#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "lockstep/state.h"
#include "shard/copy_places.h"
#include "shard/flat_unit.h"
#include "shard/shard_exchange.h"

namespace lockstep {

/// Throws InvalidArgument where ShardedOptions::peer_copies is set and cannot be.
void check_peer_copies(const ShardedOptions& options, int ranks);

/// The name of each rank's machine, the same on all ranks; all alike where one is not known.
std::vector<std::string> machines_of(const ProcessGroup& group);

/// A copy of another rank's part of every unit (ShardedOptions::peer_copies), laid out as the
/// owner's: an optimizer that treats both alike leaves the same bits in both.
class PartCopy {
 public:
  using Units = std::vector<std::unique_ptr<FlatUnit>>;
  /// Units and exchange outlive it. What the copy holds is yet to come.
  PartCopy(const Units& units, ShardExchange& exchange, int distance);

  const CopyPlaces& places() const { return places_; }
  /// As ShardedEngine::parameters() has them on the rank whose part it is.
  const std::vector<NamedParameter>& pieces() const { return pieces_; }
  /// From the owner's pieces by name. Throws InvalidArgument where one is missing, or another.
  void load(const State& state);

  /// This rank's part's gradients go to who keeps the copy of it, and the copied part's come.
  void exchange_gradients();
  void drop_gradients();

  std::int64_t parameter_bytes() const;
  std::int64_t gradient_bytes() const;

 private:
  struct Unit {
    FlatUnit* own = nullptr;
    at::Tensor part;
    std::vector<FlatLayout::Piece> places;
    std::size_t first = 0;  // in pieces_
  };

  ShardExchange& exchange_;
  CopyPlaces places_;
  std::vector<Unit> units_;
  std::vector<NamedParameter> pieces_;
};

}  // namespace lockstep
