#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

// How the bytes of a plane are coded. For pack_loops.h: internal linkage, nothing of the standard
// library that has code.
namespace lockstep {
namespace {

constexpr int kPackStored = 8;   // a width: bytes as they are
constexpr int kMostCommon = 15;  // values that have a code, of four bits
constexpr int kPackLevels = 3;   // of codes for what had none at the level before

struct PackPlan {
  int width = kPackStored;  // bits of a code
  int distinct = 0;         // of the values below; the others repeat the first
  std::uint8_t common[kMostCommon] = {};
};

// The counts of the most common values, the largest first, and how many there are of all.
struct PackCounts {
  static constexpr int kKept = kMostCommon * kPackLevels;
  std::uint32_t counts[kKept + 1] = {};
  std::uint8_t values[kKept] = {};
  int kept = 0;
  std::uint32_t total = 0;
};

// False where no value is common enough to have a code.
inline bool count_bytes(const std::uint8_t* bytes, std::size_t n, PackCounts& found) {
  constexpr std::size_t kLook = 1024;
  std::uint32_t counts[256] = {};
  const std::size_t looked = n < kLook ? n : kLook, step = n / looked;
  for (std::size_t i = 0; i < looked; ++i) ++counts[bytes[i * step]];
  std::uint32_t most = 0;
  for (const std::uint32_t count : counts) most = count > most ? count : most;
  found.total = static_cast<std::uint32_t>(looked);
  // Fifteen of them would be less than a half: four bits for all, eight for the others.
  if (most * 2 * kMostCommon < looked) return false;
  for (int value = 0; value < 256; ++value) {
    const std::uint32_t count = counts[value];
    if (count == 0 || (found.kept == PackCounts::kKept && count <= found.counts[found.kept - 1])) {
      continue;
    }
    if (found.kept < PackCounts::kKept) ++found.kept;
    int place = found.kept - 1;
    for (; place > 0 && found.counts[place - 1] < count; --place) {
      found.counts[place] = found.counts[place - 1];
      found.values[place] = found.values[place - 1];
    }
    found.counts[place] = count;
    found.values[place] = static_cast<std::uint8_t>(value);
  }
  return true;
}

struct PackCost {
  std::uint32_t bits;
  int width;
};

// Of the values from the one at `first` on, of which there are `total` in all.
inline PackCost least_cost(const PackCounts& found, int first, std::uint32_t total, int level) {
  PackCost best{.bits = 8 * total, .width = kPackStored};
  if (level >= kPackLevels || first >= found.kept) return best;
  for (int width = 1; width <= 4; ++width) {
    const int next = first + (1 << width) - 1;
    std::uint32_t rest = total;
    for (int i = first; i < next && i < found.kept; ++i) rest -= found.counts[i];
    const std::uint32_t bits =
        static_cast<std::uint32_t>(width) * total + least_cost(found, next, rest, level + 1).bits;
    if (bits < best.bits) best = {.bits = bits, .width = width};
  }
  return best;
}

inline PackPlan plan_packing(const std::uint8_t* bytes, std::size_t n, int level) {
  constexpr std::size_t kFewest = 512;  // a description takes its place, too
  PackPlan plan;
  PackCounts found;
  if (level >= kPackLevels || n < kFewest || !count_bytes(bytes, n, found)) return plan;
  const PackCost cost = least_cost(found, 0, found.total, level);
  if (cost.bits * 16 > found.total * 8 * 15) return plan;  // gains too little for the work
  plan.width = cost.width;
  const int codes = (1 << cost.width) - 1;
  plan.distinct = found.kept < codes ? found.kept : codes;
  for (int i = 0; i < kMostCommon; ++i) plan.common[i] = found.values[i < plan.distinct ? i : 0];
  return plan;
}

}  // namespace
}  // namespace lockstep
