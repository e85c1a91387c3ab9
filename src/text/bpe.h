#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep {

/// Joins the bytes of a piece to tokens: of all neighbours that can be merged, always those whose
/// merge was learnt first, the leftmost on a tie.
class Bpe {
 public:
  struct Merge {
    std::int32_t left = 0;
    std::int32_t right = 0;
    std::int32_t result = 0;
  };

  /// `merges` in the order in which they were learnt; `byte_ids` has the token of each byte.
  Bpe(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Merge>& merges);

  /// Memory that calls of one thread share.
  struct Scratch {
    std::vector<std::int32_t> ids;
    std::vector<std::uint32_t> ranks, before, after;
    std::vector<std::uint64_t> queue;
  };

  /// Appends the tokens of a piece. Takes time in proportion to n log n, whatever the bytes are.
  void encode(std::string_view piece, std::vector<std::int32_t>& out, Scratch& scratch) const;

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;  // the rank of a pair that is never merged

  struct Slot {
    std::uint64_t pair = ~std::uint64_t{0};
    std::uint32_t rank = kNone;
  };

  static std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t place_of(std::uint64_t pair) const {
    return static_cast<std::size_t>((pair * 0x9e3779b97f4a7c15) >> shift_);
  }
  std::uint32_t rank_of(std::int32_t left, std::int32_t right) const;
  void start(std::string_view piece, Scratch& scratch) const;
  std::size_t merge_short(Scratch& scratch) const;
  void merge_long(Scratch& scratch, std::vector<std::int32_t>& out) const;

  std::array<std::int32_t, 256> byte_ids_;
  std::vector<Slot> slots_;  // open addressing; at most half of them are taken
  int shift_ = 0;
  std::vector<std::int32_t> results_;           // by rank
  std::vector<std::uint32_t> byte_pair_ranks_;  // by two bytes; half of all questions are for these
};

}  // namespace lockstep
