#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "archive/value.h"

namespace lockstep {

/// A pickle of protocol 2 and the storages that its tensors refer to by their number.
struct Pickled {
  std::string pickle;
  std::vector<std::span<const std::byte>> storages;
};

/// What torch.load(weights_only=True) reads. Tensors with the same bytes share a storage. The
/// storages refer to the value's tensors. Throws InvalidArgument for what cannot be written.
Pickled pickle(const Value& value);

/// The bytes of the storage with this key. Throws where there is none.
using StorageOf = std::function<std::span<const std::byte>(const std::string& key)>;

struct UnpickleOptions {
  StorageOf storage;
  /// Given to the tensors as their owner.
  std::shared_ptr<const void> owner;
  /// How many bytes the copies of tensors that are not contiguous may take together.
  std::uint64_t copy_limit = std::uint64_t{256} << 20;
};

/// Reads the part of the pickle language that state_dicts are written in. Nothing is ever executed:
/// of the names that a pickle can call, the few that make up tensors and containers are understood
/// here, and every other is refused by its name. Throws InvalidArgument.
Value unpickle(std::span<const std::byte> bytes, const UnpickleOptions& options);

}  // namespace lockstep
