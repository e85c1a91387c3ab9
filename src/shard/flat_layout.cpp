#include "shard/flat_layout.h"

#include <algorithm>

namespace lockstep {
namespace {

std::int64_t aligned(std::int64_t value) {
  return (value + FlatLayout::kAlignment - 1) / FlatLayout::kAlignment * FlatLayout::kAlignment;
}

}  // namespace

FlatLayout::FlatLayout(const std::vector<std::int64_t>& sizes, int ranks, int replicas)
    : sizes_(sizes), ranks_(ranks), replicas_(replicas) {
  std::int64_t end = 0;
  for (const std::int64_t size : sizes_) {
    offsets_.push_back(end);
    end = aligned(end + size);
  }
  share_length_ = aligned((end + ranks - 1) / ranks);
}

std::vector<FlatLayout::Piece> FlatLayout::pieces(int part) const {
  const std::int64_t first = part * shard_length(), last = first + shard_length();
  std::vector<Piece> result;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    const std::int64_t begin = std::max(first, offsets_[i]);
    const std::int64_t end = std::min(last, offsets_[i] + sizes_[i]);
    if (begin >= end) continue;
    result.push_back(
        {.parameter = i, .begin = begin - offsets_[i], .at = begin - first, .count = end - begin});
  }
  return result;
}

// Rank r is in copy r / parts and holds part r % parts.
std::vector<FlatLayout::Stretch> FlatLayout::in_reduction(std::int64_t begin,
                                                          std::int64_t end) const {
  if (replicas_ == 1) return {{.begin = begin, .at = begin, .count = end - begin}};
  const std::int64_t parts = ranks_ / replicas_;
  std::vector<Stretch> result;
  while (begin < end) {
    const std::int64_t share = begin / share_length_;
    const std::int64_t part = share / replicas_, copy = share % replicas_;
    const std::int64_t next = std::min(end, (share + 1) * share_length_);
    result.push_back({.begin = begin,
                      .at = (copy * parts + part) * share_length_ + begin % share_length_,
                      .count = next - begin});
    begin = next;
  }
  return result;
}

std::vector<FlatLayout::Gap> FlatLayout::gaps() const {
  std::vector<Gap> result;
  std::int64_t end = 0;
  const auto note = [&](std::int64_t next) {
    if (next > end) result.push_back({.begin = end, .end = next});
  };
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    note(offsets_[i]);
    end = offsets_[i] + sizes_[i];
  }
  note(length());
  return result;
}

}  // namespace lockstep
