#include "shm/shared_block.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

constexpr std::size_t kBlockPage = 4096;

constexpr std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kBlockPage - 1) / kBlockPage * kBlockPage;
}

// Before the parts are words by which ranks see that it is the same memory (agree_on_segment()).
std::size_t block_head(const SharedBlock::Shape& shape) {
  return whole_pages(static_cast<std::size_t>(shape.ranks) * sizeof(std::uint64_t));
}

}  // namespace

std::size_t SharedBlock::bytes_needed(const Shape& shape) {
  return block_head(shape) + static_cast<std::size_t>(shape.ranks) * whole_pages(shape.bytes);
}

SharedSegment::Range SharedBlock::own_range(const Shape& shape, int rank) {
  const std::size_t part = whole_pages(shape.bytes);
  if (rank == 0) return {.begin = 0, .bytes = block_head(shape) + part};
  return {.begin = block_head(shape) + static_cast<std::size_t>(rank) * part, .bytes = part};
}

SharedBlock::SharedBlock(SharedSegment segment, const Shape& shape, int rank, std::uint64_t mark)
    : segment_(std::move(segment)), shape_(shape), rank_(rank), mark_(mark) {}

std::byte* SharedBlock::part(int rank) const {
  return segment_.data() + block_head(shape_) +
         static_cast<std::size_t>(rank) * whole_pages(shape_.bytes);
}

void SharedBlocks::add(std::shared_ptr<const SharedBlock> block) {
  const std::lock_guard lock(mutex_);
  blocks_.push_back(std::move(block));
}

void SharedBlocks::remove(std::uint64_t mark) {
  std::shared_ptr<const SharedBlock> removed;  // unmapped outside the lock
  const std::lock_guard lock(mutex_);
  const auto found =
      std::ranges::find_if(blocks_, [&](const auto& block) { return block->mark() == mark; });
  if (found == blocks_.end()) return;
  removed = std::move(*found);
  blocks_.erase(found);
}

SharedBlocks::Place SharedBlocks::find(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  for (const auto& block : blocks_) {
    if (begin < block->own() || begin + bytes > block->own() + block->bytes()) continue;
    return {.block = block, .offset = static_cast<std::size_t>(begin - block->own())};
  }
  return {};
}

}  // namespace lockstep
