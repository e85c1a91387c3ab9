#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

/// A piece to be packed or unpacked, without anything that a standard library would have to be
/// asked for.
struct PackJob {
  bool wide = false;  // float32; otherwise bfloat16
  const std::uint8_t* in = nullptr;
  std::size_t in_bytes = 0;
  std::uint8_t* out = nullptr;
  std::size_t out_bytes = 0;        // packing: room; unpacking: what has to come of it
  std::uint8_t* scratch = nullptr;  // kPackStrips times pack_strip() of the numbers
};

// Memory for one byte of each number, in whole blocks, and one more. Each of a number's up to four
// bytes has some, and what is left over at each level of packing.
inline constexpr std::size_t kPackBlock = 64, kPackStrips = 8;
static inline std::size_t pack_strip(std::size_t numbers) {
  return (numbers / kPackBlock + 2) * kPackBlock;
}

/// The packed bytes; 0 where they do not fit into the room.
std::size_t pack_portable(const PackJob& job);
/// False where the input is not what pack() makes of so many bytes.
bool unpack_portable(const PackJob& job);
#if defined(__x86_64__)
std::size_t pack_avx2(const PackJob& job);
bool unpack_avx2(const PackJob& job);
#endif

}  // namespace lockstep
