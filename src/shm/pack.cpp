#include "shm/pack.h"

#include "lockstep/error.h"
#include "shm/pack_variants.h"

namespace lockstep {
namespace {

struct PackVariant {
  const char* name;
  std::size_t (*pack)(const PackJob& job);
  bool (*unpack)(const PackJob& job);
};

PackVariant choose_pack_variant() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
      __builtin_cpu_supports("popcnt")) {
    return {"avx2", pack_avx2, unpack_avx2};
  }
#endif
  return {"portable", pack_portable, unpack_portable};
}

const PackVariant& chosen_pack_variant() {
  static const PackVariant variant = choose_pack_variant();
  return variant;
}

std::uint8_t* room_for(std::vector<std::byte>& scratch, std::size_t numbers) {
  const std::size_t needed = kPackStrips * pack_strip(numbers);
  if (scratch.size() < needed) scratch.resize(needed);
  return reinterpret_cast<std::uint8_t*>(scratch.data());
}

}  // namespace

const char* pack_instruction_set() {
  return chosen_pack_variant().name;
}

bool can_pack(ElementType type) {
  return type == ElementType::float32 || type == ElementType::bfloat16;
}

std::size_t FloatPacker::pack(ElementType type, const void* data, std::size_t bytes, void* out) {
  if (!can_pack(type) || bytes % bytes_of(type) != 0) return 0;
  return chosen_pack_variant().pack({.wide = type == ElementType::float32,
                                     .in = static_cast<const std::uint8_t*>(data),
                                     .in_bytes = bytes,
                                     .out = static_cast<std::uint8_t*>(out),
                                     .out_bytes = packed_limit(bytes),
                                     .scratch = room_for(scratch_, bytes / bytes_of(type))});
}

void FloatPacker::unpack(const void* packed, std::size_t size, void* out, std::size_t bytes) {
  // Of bfloat16, where there are more numbers than of float32.
  const bool whole = chosen_pack_variant().unpack({.in = static_cast<const std::uint8_t*>(packed),
                                                   .in_bytes = size,
                                                   .out = static_cast<std::uint8_t*>(out),
                                                   .out_bytes = bytes,
                                                   .scratch = room_for(scratch_, bytes / 2)});
  if (!whole) {
    throw Error(concat("a packed message does not hold the ", bytes,
                       " bytes that were expected; the sender is broken, or no lockstep program"));
  }
}

}  // namespace lockstep
