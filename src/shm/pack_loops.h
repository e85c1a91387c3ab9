#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "shm/pack_plan.h"
#include "shm/pack_variants.h"

// Each source that includes them is compiled for another instruction set, so everything has
// internal linkage.
//
// A packed piece: PackHeader; the planes that are stored as they are, one after the other; then a
// node for each of the others. A plane holds the bytes of one place of all numbers. A node:
// PackNode; for each 64 bytes of the plane `width` words, the first with the lowest bits of the 64
// codes, and so on; then a node for the bytes whose code was "another", if there are any.
namespace lockstep {
namespace {

constexpr std::uint32_t kPackMagic = 0x4b50534c;  // "LSPK"
constexpr int kMostPlanes = 4;
static_assert(kPackStrips >= kMostPlanes + kPackLevels);

struct PackHeader {
  std::uint32_t magic;
  std::uint32_t numbers;
  std::uint8_t planes;
  std::uint8_t stored[kMostPlanes];  // 1: as it is
  std::uint8_t unused[3];
};

struct PackNode {
  std::uint8_t width;  // of codes, in bits; kPackStored: the bytes follow as they are
  std::uint8_t common[kMostCommon];
  std::uint32_t rest;  // bytes that are none of them
};

// A number's bytes, the exponent as the highest: the sign trades places with it.
struct Float32Planes {
  using Bits = std::uint32_t;
  static constexpr int kPlanes = 4;
  static Bits apart(Bits x) {
    return ((x << 1) & 0xff000000U) | ((x >> 8) & 0x00800000U) | (x & 0x007fffffU);
  }
  static Bits together(Bits y) {
    return ((y & 0xff000000U) >> 1) | ((y & 0x00800000U) << 8) | (y & 0x007fffffU);
  }
  static void split(const std::uint8_t* in, std::size_t n, std::uint8_t* const* out) {
    std::uint8_t* __restrict a = out[0], * __restrict b = out[1], * __restrict c = out[2], * __restrict d = out[3];
    for (std::size_t i = 0; i < n; ++i) {
      Bits x;
      std::memcpy(&x, in + 4 * i, 4);
      const Bits y = apart(x);
      a[i] = static_cast<std::uint8_t>(y);
      b[i] = static_cast<std::uint8_t>(y >> 8);
      c[i] = static_cast<std::uint8_t>(y >> 16);
      d[i] = static_cast<std::uint8_t>(y >> 24);
    }
  }
  static void join(const std::uint8_t* const* in, std::size_t n, std::uint8_t* __restrict out) {
    const std::uint8_t *a = in[0], *b = in[1], *c = in[2], *d = in[3];
    for (std::size_t i = 0; i < n; ++i) {
      const Bits x = together(Bits{a[i]} | Bits{b[i]} << 8 | Bits{c[i]} << 16 | Bits{d[i]} << 24);
      std::memcpy(out + 4 * i, &x, 4);
    }
  }
};

struct Bfloat16Planes {
  using Bits = std::uint16_t;
  static constexpr int kPlanes = 2;
  static Bits apart(Bits x) {
    return static_cast<Bits>(((x << 1) & 0xff00U) | ((x >> 8) & 0x80U) | (x & 0x7fU));
  }
  static Bits together(Bits y) {
    return static_cast<Bits>(((y & 0xff00U) >> 1) | ((y & 0x80U) << 8) | (y & 0x7fU));
  }
  static void split(const std::uint8_t* in, std::size_t n, std::uint8_t* const* out) {
    std::uint8_t* __restrict a = out[0], * __restrict b = out[1];
    for (std::size_t i = 0; i < n; ++i) {
      Bits x;
      std::memcpy(&x, in + 2 * i, 2);
      const Bits y = apart(x);
      a[i] = static_cast<std::uint8_t>(y);
      b[i] = static_cast<std::uint8_t>(y >> 8);
    }
  }
  static void join(const std::uint8_t* const* in, std::size_t n, std::uint8_t* __restrict out) {
    const std::uint8_t *a = in[0], *b = in[1];
    for (std::size_t i = 0; i < n; ++i) {
      const Bits x = together(static_cast<Bits>(a[i] | b[i] << 8));
      std::memcpy(out + 2 * i, &x, 2);
    }
  }
};

// Which code a byte gets.
struct PackCodes {
  explicit PackCodes(const PackPlan& of) : plan(of) {
    std::memset(code_of, (1 << plan.width) - 1, sizeof(code_of));
    for (int code = 0; code < plan.distinct; ++code) {
      code_of[plan.common[code]] = static_cast<std::uint8_t>(code);
    }
  }
  PackPlan plan;
  std::uint8_t code_of[256];
};

// Bit k of the codes of 64 bytes as words[k].
inline void words_of_bytes(const std::uint8_t* bytes, const PackCodes& codes,
                           std::uint64_t* words) {
  const int width = codes.plan.width;
#if defined(__AVX2__)
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + 32));
  std::uint64_t common = 0, bits[4] = {};
  for (int code = 0; code < codes.plan.distinct; ++code) {
    const __m256i value = _mm256_set1_epi8(static_cast<char>(codes.plan.common[code]));
    const auto first =
        static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(low, value)));
    const auto second =
        static_cast<std::uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(high, value)));
    const std::uint64_t equal = first | std::uint64_t{second} << 32;
    common |= equal;
    for (int bit = 0; bit < 4; ++bit) bits[bit] |= (code >> bit & 1) != 0 ? equal : 0;
  }
  for (int bit = 0; bit < width; ++bit) words[bit] = bits[bit] | ~common;
#else
  for (int bit = 0; bit < width; ++bit) words[bit] = 0;
  for (int part = 0; part < 8; ++part) {
    std::uint64_t eight = 0;
    for (int i = 0; i < 8; ++i) {
      eight |= std::uint64_t{codes.code_of[bytes[8 * part + i]]} << (8 * i);
    }
    for (int bit = 0; bit < width; ++bit) {
      // Each byte's bit moves to a place of its own in the highest byte of the product.
      const std::uint64_t each = (eight >> bit) & 0x0101010101010101U;
      words[bit] |= ((each * 0x0102040810204080U) >> 56) << (8 * part);
    }
  }
#endif
}

// Copies those of 64 bytes whose bits are set. Writes up to a word more than it returns.
inline std::size_t pick_bytes(const std::uint8_t* bytes, std::uint64_t which, std::uint8_t* out) {
  if (which == 0) return 0;
#if defined(__BMI2__)
  std::size_t picked = 0;
  for (int part = 0; part < 8; ++part, which >>= 8) {
    std::uint64_t eight;
    std::memcpy(&eight, bytes + 8 * part, 8);
    const std::uint64_t mask = _pdep_u64(which & 0xffU, 0x0101010101010101U) * 0xffU;
    eight = _pext_u64(eight, mask);
    std::memcpy(out + picked, &eight, 8);
    picked += static_cast<std::size_t>(__builtin_popcountll(which & 0xffU));
  }
  return picked;
#else
  std::size_t picked = 0;
  for (; which != 0; which &= which - 1) out[picked++] = bytes[__builtin_ctzll(which)];
  return picked;
#endif
}

// The other way round: puts bytes where bits are set. Reads up to a word more than there are.
inline void place_bytes(const std::uint8_t* bytes, std::uint64_t where, std::uint8_t* out) {
  if (where == 0) return;
#if defined(__BMI2__)
  for (int part = 0; part < 8; ++part, where >>= 8) {
    std::uint64_t eight, old;
    std::memcpy(&eight, bytes, 8);
    std::memcpy(&old, out + 8 * part, 8);
    const std::uint64_t mask = _pdep_u64(where & 0xffU, 0x0101010101010101U) * 0xffU;
    old = (old & ~mask) | _pdep_u64(eight, mask);
    std::memcpy(out + 8 * part, &old, 8);
    bytes += __builtin_popcountll(where & 0xffU);
  }
#else
  for (; where != 0; where &= where - 1) out[__builtin_ctzll(where)] = *bytes++;
#endif
}

// The common values of 64 codes.
inline void values_of_words(const std::uint64_t* words, int width, const std::uint8_t* common,
                            std::uint8_t* out) {
#if defined(__AVX2__)
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(common)));
  const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                          2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i place = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201U));
  for (int half = 0; half < 2; ++half) {
    __m256i codes = _mm256_setzero_si256();
    for (int bit = 0; bit < width; ++bit) {
      const auto word = static_cast<int>(static_cast<std::uint32_t>(words[bit] >> (32 * half)));
      const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word), spread);
      const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, place), place);
      codes = _mm256_or_si256(codes,
                              _mm256_and_si256(set, _mm256_set1_epi8(static_cast<char>(1 << bit))));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32 * half),
                        _mm256_shuffle_epi8(table, codes));
  }
#else
  for (int part = 0; part < 8; ++part) {
    std::uint64_t codes = 0;
    for (int bit = 0; bit < width; ++bit) {
      // Eight copies of the eight bits, one of them in each byte, as 0 or 1.
      const std::uint64_t copies = ((words[bit] >> (8 * part)) & 0xffU) * 0x0101010101010101U;
      const std::uint64_t set = (copies & 0x8040201008040201U) + 0x7f7f7f7f7f7f7f7fU;
      codes |= ((set >> 7) & 0x0101010101010101U) << bit;
    }
    for (int i = 0; i < 8; ++i) out[8 * part + i] = common[(codes >> (8 * i)) & 15U];
  }
#endif
}

// Where the next bytes are written or read.
struct PackCursor {
  std::uint8_t* at;
  std::size_t room;
  std::uint8_t* take(std::size_t bytes) {
    if (bytes > room) return nullptr;
    std::uint8_t* taken = at;
    at += bytes;
    room -= bytes;
    return taken;
  }
};

struct UnpackCursor {
  const std::uint8_t* at;
  std::size_t room;
  const std::uint8_t* take(std::size_t bytes) {
    if (bytes > room) return nullptr;
    const std::uint8_t* taken = at;
    at += bytes;
    room -= bytes;
    return taken;
  }
};

inline std::size_t blocks_of(std::size_t n) {
  return (n + kPackBlock - 1) / kPackBlock;
}

inline std::uint64_t all_set(const std::uint64_t* words, int width) {
  std::uint64_t all = words[0];
  for (int bit = 1; bit < width; ++bit) all &= words[bit];
  return all;
}

// Writes the codes of the bytes; those that are not common are moved to the beginning of `bytes`,
// behind which a block is free.
inline std::size_t write_codes(std::uint8_t* bytes, std::size_t n, const PackPlan& plan,
                               std::uint8_t* out) {
  const PackCodes codes(plan);
  std::size_t rest = 0;
  for (std::size_t begin = 0; begin < n; begin += kPackBlock) {
    if (n - begin < kPackBlock) std::memset(bytes + n, plan.common[0], kPackBlock - (n - begin));
    std::uint8_t block[kPackBlock];  // what is moved may reach into it
    std::memcpy(block, bytes + begin, kPackBlock);
    std::uint64_t words[4];
    words_of_bytes(block, codes, words);
    rest += pick_bytes(block, all_set(words, plan.width), bytes + rest);
    std::memcpy(out, words, 8 * static_cast<std::size_t>(plan.width));
    out += 8 * plan.width;
  }
  return rest;
}

inline bool pack_plane(std::uint8_t* bytes, std::size_t n, PackCursor& out) {
  for (int level = 0;; ++level) {
    const PackPlan plan = plan_packing(bytes, n, level);
    PackNode node{};
    std::uint8_t* at = out.take(sizeof(node));
    if (at == nullptr) return false;
    node.width = static_cast<std::uint8_t>(plan.width);
    if (plan.width == kPackStored) {
      std::uint8_t* stored = out.take(n);
      if (stored == nullptr) return false;
      std::memcpy(stored, bytes, n);
      std::memcpy(at, &node, sizeof(node));
      return true;
    }
    std::uint8_t* codes = out.take(blocks_of(n) * 8 * static_cast<std::size_t>(plan.width));
    if (codes == nullptr) return false;
    n = write_codes(bytes, n, plan, codes);
    std::memcpy(node.common, plan.common, sizeof(node.common));
    node.rest = static_cast<std::uint32_t>(n);
    std::memcpy(at, &node, sizeof(node));
    if (n == 0) return true;
  }
}

// `out` has room for whole blocks. Each level has room of its own behind it, `stride` bytes on.
inline bool unpack_plane(UnpackCursor& in, std::uint8_t* out, std::size_t n, std::size_t stride,
                         int level) {
  PackNode node;
  const std::uint8_t* head = in.take(sizeof(node));
  if (head == nullptr) return false;
  std::memcpy(&node, head, sizeof(node));
  if (node.width == kPackStored) {
    const std::uint8_t* stored = in.take(n);
    if (stored == nullptr) return false;
    std::memcpy(out, stored, n);
    return true;
  }
  const int width = node.width;
  if (width < 1 || width > 4 || level >= kPackLevels || node.rest > n) return false;
  const std::uint8_t* codes = in.take(blocks_of(n) * 8 * static_cast<std::size_t>(width));
  if (codes == nullptr) return false;
  std::uint8_t* others = out + stride;
  if (node.rest > 0 && !unpack_plane(in, others, node.rest, stride, level + 1)) return false;
  std::uint8_t common[16] = {};
  std::memcpy(common, node.common, sizeof(node.common));
  std::size_t used = 0;
  for (std::size_t begin = 0; begin < n; begin += kPackBlock) {
    std::uint64_t words[4];
    std::memcpy(words, codes, 8 * static_cast<std::size_t>(width));
    codes += 8 * width;
    values_of_words(words, width, common, out + begin);
    const std::uint64_t wanted = all_set(words, width);
    const auto count = static_cast<std::size_t>(__builtin_popcountll(wanted));
    if (node.rest - used < count) return false;
    place_bytes(others + used, wanted, out + begin);
    used += count;
  }
  return used == node.rest;
}

template <typename Planes>
std::size_t pack_numbers(const PackJob& job) {
  const std::size_t n = job.in_bytes / sizeof(typename Planes::Bits);
  PackCursor out{job.out, job.out_bytes};
  PackHeader header{};
  std::uint8_t* head = out.take(sizeof(header));
  if (head == nullptr || n == 0 || n > UINT32_MAX) return 0;
  header.magic = kPackMagic;
  header.numbers = static_cast<std::uint32_t>(n);
  header.planes = Planes::kPlanes;

  // Some numbers tell which planes are worth it.
  constexpr std::size_t kLook = 1024;
  std::uint8_t looked[kMostPlanes][kLook];
  typename Planes::Bits sample[kLook];
  const std::size_t count = n < kLook ? n : kLook, step = n / count;
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(&sample[i], job.in + i * step * sizeof(sample[i]), sizeof(sample[i]));
  }
  std::uint8_t* planes[kMostPlanes] = {looked[0], looked[1], looked[2], looked[3]};
  Planes::split(reinterpret_cast<const std::uint8_t*>(sample), count, planes);
  bool any = false;
  for (int plane = 0; plane < Planes::kPlanes; ++plane) {
    const bool stored = plan_packing(looked[plane], count, 0).width == kPackStored;
    header.stored[plane] = stored;
    planes[plane] =
        stored ? out.take(n) : job.scratch + pack_strip(n) * static_cast<std::size_t>(plane);
    if (planes[plane] == nullptr) return 0;
    any = any || !stored;
  }
  if (!any) return 0;
  std::memcpy(head, &header, sizeof(header));
  Planes::split(job.in, n, planes);
  for (int plane = 0; plane < Planes::kPlanes; ++plane) {
    if (!header.stored[plane] && !pack_plane(planes[plane], n, out)) return 0;
  }
  return job.out_bytes - out.room;
}

template <typename Planes>
bool unpack_numbers(const PackJob& job, const PackHeader& header, UnpackCursor in) {
  const std::size_t n = header.numbers;
  if (job.out_bytes != n * sizeof(typename Planes::Bits)) return false;
  const std::uint8_t* planes[kMostPlanes] = {};
  for (int plane = 0; plane < Planes::kPlanes; ++plane) {
    if (!header.stored[plane]) continue;
    planes[plane] = in.take(n);
    if (planes[plane] == nullptr) return false;
  }
  const std::size_t stride = pack_strip(n);
  for (int plane = 0; plane < Planes::kPlanes; ++plane) {
    if (header.stored[plane]) continue;
    std::uint8_t* unpacked = job.scratch + stride * static_cast<std::size_t>(plane);
    planes[plane] = unpacked;
    // What is left over goes where the next planes will be.
    if (!unpack_plane(in, unpacked, n, stride, 0)) return false;
  }
  Planes::join(planes, n, job.out);
  return true;
}

inline std::size_t pack_piece(const PackJob& job) {
  return job.wide ? pack_numbers<Float32Planes>(job) : pack_numbers<Bfloat16Planes>(job);
}

inline bool unpack_piece(const PackJob& job) {
  UnpackCursor in{job.in, job.in_bytes};
  PackHeader header;
  const std::uint8_t* head = in.take(sizeof(header));
  if (head == nullptr) return false;
  std::memcpy(&header, head, sizeof(header));
  if (header.magic != kPackMagic || header.numbers == 0) return false;
  if (header.planes == Float32Planes::kPlanes)
    return unpack_numbers<Float32Planes>(job, header, in);
  return header.planes == Bfloat16Planes::kPlanes &&
         unpack_numbers<Bfloat16Planes>(job, header, in);
}

}  // namespace
}  // namespace lockstep
