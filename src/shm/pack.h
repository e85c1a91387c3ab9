#pragma once

#include <cstddef>
#include <vector>

#include "shm/element.h"

namespace lockstep {

/// Whether numbers of this type get smaller: float32 and bfloat16, whose exponents take eight bits
/// and tell less than three. A float16 has too few bits of exponent for it, and a float64 too many
/// others.
bool can_pack(ElementType type);

/// Packs floating point numbers without loss: every bit comes back, whatever the numbers are.
///
/// Bytes of the same place in each number (exponents; signs and the upper bits of mantissas; the
/// rest) are taken together. Where a few values are common among them (the case of exponents), each
/// becomes a code of one to four bits: a common value, or "another", and the others follow, packed
/// by the same rule. Codes of one width need no bit by bit decoding. A piece should have some ten
/// thousand numbers.
///
/// Not thread-safe; one object serves any number of pieces, one after the other.
class FloatPacker {
 public:
  /// Returns the packed bytes, which are at least kLeastGain smaller, or 0 where they would not
  /// be (`out` is undefined then). `out` has room for packed_limit(bytes).
  std::size_t pack(ElementType type, const void* data, std::size_t bytes, void* out);

  /// The other way round. `size` bytes are readable at `packed`, which may be more than it takes.
  /// Throws Error where they are not `bytes` packed bytes; nothing outside is read or written then.
  void unpack(const void* packed, std::size_t size, void* out, std::size_t bytes);

  static std::size_t packed_limit(std::size_t bytes) { return bytes - bytes / kLeastGain; }
  static constexpr std::size_t kLeastGain = 20;  // one twentieth

 private:
  std::vector<std::byte> scratch_;
};

/// The instruction set that is used: "portable", "avx2".
const char* pack_instruction_set();

}  // namespace lockstep
