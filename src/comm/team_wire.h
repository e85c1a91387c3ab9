#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "shm/element.h"
#include "shm/pack.h"
#include "shm/pack_pace.h"

namespace lockstep {

/// LOCKSTEP_WIRE: whether floats are packed on their way to another machine.
enum class WireMode { automatic, packed, plain };

/// Throws InvalidArgument where LOCKSTEP_WIRE is none of auto, packed and plain.
WireMode wire_mode_from_environment();

/// How a rank's pieces of tensors travel to other machines: as they are, or packed. The sender
/// decides, piece by piece, and nobody has to be told: a packed piece is shorter (Gloo takes a
/// message that is smaller than the memory that waits for it), so that a mark which the receiver
/// has left at the end of that memory is still there when the message has come.
/// A mark is of 128 random bits, new ones for each piece; none will come by chance.
///
/// Not thread-safe.
class TeamWire {
 public:
  TeamWire() : mode_(wire_mode_from_environment()) {}

  /// Pieces of less are never packed.
  static constexpr std::size_t kLeastBytes = 16 << 10;
  static std::size_t packed_limit(std::size_t bytes) { return FloatPacker::packed_limit(bytes); }

  /// Whether to try it with this piece.
  bool packs(ElementType type, std::size_t bytes) const;
  /// As FloatPacker does.
  std::size_t pack(ElementType type, const void* data, std::size_t bytes, void* out);

  using Mark = std::array<std::uint64_t, 2>;
  /// Before a piece is received.
  Mark leave_mark(void* data, std::size_t bytes);
  /// After it has come; throws Error where what came is broken.
  void look_at(const Mark& mark, void* data, std::size_t bytes);

  // What is known of the way, for PackPace.
  void begin_call() { pace_.begin_call(); }
  void end_call() { pace_.end_call(now()); }
  void sent(std::size_t bytes) { pace_.sent(bytes, now()); }

 private:
  static PackPace::Seconds now();

  WireMode mode_;
  PackPace pace_;
  FloatPacker packer_;
  std::vector<std::byte> packed_;  // what came, while it is unpacked to where it was
  std::mt19937_64 marks_{std::random_device{}()};
};

}  // namespace lockstep
