#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep {

/// Remembers the tokens of short pieces: most of a text is a few thousand different words.
///
/// A piece has one place, a cache line long, and a newer piece takes it over. Not thread-safe.
class PieceCache {
 public:
  static constexpr std::size_t kLongestPiece = 30;
  static constexpr std::size_t kMostTokens = 8;

  PieceCache() : slots_(std::size_t{1} << kBits) {}

  /// A piece in the form in which it is looked up.
  class Key {
   public:
    /// `left`: how many bytes can be read from its first on. The piece is at most kLongestPiece
    /// long.
    Key(std::string_view piece, std::size_t left) {
      const std::size_t length = piece.size();
      if (left >= sizeof words_) {
        std::memcpy(words_.data(), piece.data(), sizeof words_);
        for (std::size_t i = 0; i < words_.size(); ++i) words_[i] &= mask(length, i);
      } else {
        std::memcpy(words_.data(), piece.data(), length);
      }
      words_[3] |= static_cast<std::uint64_t>(length) << 48;
    }

    std::size_t place() const {
      constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;
      const std::uint64_t low = (words_[0] ^ std::rotl(words_[2], 29)) * kFactor;
      const std::uint64_t high = (words_[1] ^ std::rotl(words_[3], 17)) * 0xc2b2ae3d27d4eb4f;
      return static_cast<std::size_t>((low ^ std::rotl(high, 31)) * kFactor >> (64 - kBits));
    }

   private:
    friend class PieceCache;
    static std::uint64_t mask(std::size_t length, std::size_t word) {
      const std::size_t first = word * 8;
      if (length >= first + 8) return ~std::uint64_t{0};
      return length <= first ? 0 : (std::uint64_t{1} << (length - first) * 8) - 1;
    }

    std::array<std::uint64_t, 4>
        words_{};  // bytes, zeros; byte 30: the length, 31: how many tokens
  };

  /// Appends the tokens of a piece that is remembered; false for one that is not.
  bool append(const Key& key, std::vector<std::int32_t>& out) const {
    const Slot& slot = slots_[key.place()];
    const auto& [first, second, third, fourth] = slot.words;
    if (first != key.words_[0] || second != key.words_[1] || third != key.words_[2] ||
        (fourth & kWithoutCount) != key.words_[3]) {
      return false;
    }
    const std::size_t count = fourth >> 56;
    if (count == 1) {
      out.push_back(slot.ids[0]);
    } else {
      out.insert(out.end(), slot.ids.begin(), slot.ids.begin() + count);
    }
    return true;
  }

  void remember(const Key& key, std::span<const std::int32_t> ids) {
    if (ids.size() > kMostTokens) return;
    Slot& slot = slots_[key.place()];
    slot.words = key.words_;
    slot.words[3] |= static_cast<std::uint64_t>(ids.size()) << 56;
    std::memcpy(slot.ids.data(), ids.data(), ids.size_bytes());
  }

 private:
  static_assert(std::endian::native == std::endian::little, "lengths are put into the last bytes");
  static constexpr int kBits = 15;
  static constexpr std::uint64_t kWithoutCount = ~std::uint64_t{0} >> 8;

  struct alignas(64) Slot {
    std::array<std::uint64_t, 4> words{};  // all zero: empty, because no piece has no length
    std::array<std::int32_t, kMostTokens> ids{};
  };

  std::vector<Slot> slots_;
};

}  // namespace lockstep
