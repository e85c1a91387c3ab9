#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace lockstep {
namespace {

// Up to here looking at every pair for each merge is quicker than keeping them in a queue.
constexpr std::size_t kLongestScanned = 96;

}  // namespace

Bpe::Bpe(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Merge>& merges)
    : byte_ids_(byte_ids) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(merges.size() * 2, 16));
  slots_.resize(slots);
  shift_ = 64 - std::countr_zero(slots);
  results_.reserve(merges.size());
  for (const Merge& merge : merges) {
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    std::size_t place = place_of(pair);
    while (slots_[place].rank != kNone && slots_[place].pair != pair) {
      place = (place + 1) & (slots - 1);
    }
    // Of a pair that is listed twice the last place counts, as it does elsewhere.
    slots_[place] = {pair, static_cast<std::uint32_t>(results_.size())};
    results_.push_back(merge.result);
  }
  byte_pair_ranks_.reserve(byte_ids_.size() * byte_ids_.size());
  for (const std::int32_t left : byte_ids_) {
    for (const std::int32_t right : byte_ids_) byte_pair_ranks_.push_back(rank_of(left, right));
  }
}

std::uint32_t Bpe::rank_of(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  std::size_t place = place_of(pair);
  while (slots_[place].rank != kNone) {
    if (slots_[place].pair == pair) return slots_[place].rank;
    place = (place + 1) & (slots_.size() - 1);
  }
  return kNone;
}

// Fills scratch.ids with the tokens of the bytes, and scratch.ranks with those of their pairs.
void Bpe::start(std::string_view piece, Scratch& scratch) const {
  scratch.ids.resize(piece.size());
  scratch.ranks.resize(piece.size());
  for (std::size_t i = 0; i < piece.size(); ++i) {
    const auto byte = static_cast<unsigned char>(piece[i]);
    scratch.ids[i] = byte_ids_[byte];
    if (i > 0) {
      const auto before = static_cast<unsigned char>(piece[i - 1]);
      scratch.ranks[i - 1] = byte_pair_ranks_[before << 8 | byte];
    }
  }
  scratch.ranks.back() = kNone;
}

// Merges scratch.ids in place; returns how many are left.
std::size_t Bpe::merge_short(Scratch& scratch) const {
  auto* const ids = scratch.ids.data();
  auto* const ranks = scratch.ranks.data();
  std::size_t count = scratch.ids.size();
  while (count > 1) {
    // Two loops that the compiler makes vector instructions of, instead of one that it does not.
    std::uint32_t lowest = kNone;
    for (std::size_t i = 0; i + 1 < count; ++i) lowest = std::min(lowest, ranks[i]);
    if (lowest == kNone) break;
    const auto best = static_cast<std::size_t>(std::find(ranks, ranks + count, lowest) - ranks);
    ids[best] = results_[ranks[best]];
    std::copy(ids + best + 2, ids + count, ids + best + 1);
    if (best + 2 < count) std::copy(ranks + best + 2, ranks + count - 1, ranks + best + 1);
    --count;
    if (best > 0) ranks[best - 1] = rank_of(ids[best - 1], ids[best]);
    if (best + 1 < count) ranks[best] = rank_of(ids[best], ids[best + 1]);
  }
  return count;
}

// The same with a queue of pairs. An entry is a rank and a place; it is out of date when the pair
// at the place has another rank by now.
void Bpe::merge_long(Scratch& scratch, std::vector<std::int32_t>& out) const {
  std::vector<std::int32_t>& ids = scratch.ids;
  std::vector<std::uint32_t>& ranks = scratch.ranks;
  std::vector<std::uint32_t>& before = scratch.before;
  std::vector<std::uint32_t>& after = scratch.after;
  std::vector<std::uint64_t>& queue = scratch.queue;
  const auto count = static_cast<std::uint32_t>(ids.size());
  before.resize(count);
  after.resize(count);
  queue.clear();
  const auto entry = [](std::uint32_t rank, std::uint32_t place) {
    return static_cast<std::uint64_t>(rank) << 32 | place;
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    before[i] = i == 0 ? kNone : i - 1;
    after[i] = i + 1 == count ? kNone : i + 1;
    if (ranks[i] != kNone) queue.push_back(entry(ranks[i], i));
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  const auto renew = [&](std::uint32_t place) {
    ranks[place] = after[place] == kNone ? kNone : rank_of(ids[place], ids[after[place]]);
    if (ranks[place] == kNone) return;
    queue.push_back(entry(ranks[place], place));
    std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const auto place = static_cast<std::uint32_t>(queue.back());
    const auto rank = static_cast<std::uint32_t>(queue.back() >> 32);
    queue.pop_back();
    if (ranks[place] != rank) continue;
    const std::uint32_t gone = after[place];
    ids[place] = results_[rank];
    after[place] = after[gone];
    if (after[gone] != kNone) before[after[gone]] = place;
    ranks[gone] = kNone;
    renew(place);
    if (before[place] != kNone) renew(before[place]);
  }
  for (std::uint32_t i = 0; i != kNone; i = after[i]) out.push_back(ids[i]);
}

void Bpe::encode(std::string_view piece, std::vector<std::int32_t>& out, Scratch& scratch) const {
  if (piece.empty()) return;
  start(piece, scratch);
  if (scratch.ids.size() > kLongestScanned) {
    merge_long(scratch, out);
    return;
  }
  const std::size_t left = merge_short(scratch);
  out.insert(out.end(), scratch.ids.begin(),
             scratch.ids.begin() + static_cast<std::ptrdiff_t>(left));
}

}  // namespace lockstep
