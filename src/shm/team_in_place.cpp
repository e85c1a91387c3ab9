#include <cstring>

#include "shm/reduce.h"
#include "shm/shared_block.h"
#include "shm/team.h"
#include "shm/team_layout.h"

// Reductions of data that every rank has at the same place of one block (SharedBlock): nothing is
// copied.
namespace lockstep {
namespace {

// What is combined at once, so that it is still in the first cache when it is written to the
// others.
constexpr std::size_t kInPlaceBytes = 8 << 10;

// What ranks tell each other about where their data is.
struct Whereabouts {
  std::uint64_t mark = 0;  // none
  std::uint64_t offset = 0;
  bool operator==(const Whereabouts&) const = default;
};

}  // namespace

// A meeting: afterwards everybody's data is complete, and all know whether it lies side by side.
bool ShmTeam::lies_side_by_side(const SharedBlocks::Place& place, const Announcement& announced) {
  const Whereabouts own{.mark = place.block ? place.block->mark() : 0, .offset = place.offset};
  bool same = own.mark != 0;
  pass_chunks(
      1, 0, announced, [&](std::size_t, std::byte* mine) { std::memcpy(mine, &own, sizeof(own)); },
      [&](std::size_t, std::uint32_t number) {
        for (int peer = 0; peer < options_.size; ++peer) {
          await_written(peer, number, announced);
          Whereabouts theirs;
          std::memcpy(&theirs, slot(peer, number), sizeof(theirs));
          same = same && theirs == own;
        }
      });
  return same;
}

bool ShmTeam::all_reduce_in_place(void* data, std::int64_t count, const ReduceSpec& spec,
                                  const Announcement& announced) {
  const std::size_t bytes = static_cast<std::size_t>(count) * bytes_of(spec.type);
  // A rule that is the same on every rank, whatever the others' tensors are.
  if (!options_.blocks || bytes < kTeamInPlaceBytes) return false;
  bool done = false;
  guarded([&] {
    const SharedBlocks::Place place = options_.blocks->find(data, bytes);
    if (!lies_side_by_side(place, announced)) return;
    combine_in_place(place, bytes, spec);
    pass_chunks(
        1, 0, announced, [](std::size_t, std::byte*) {},
        [&](std::size_t, std::uint32_t number) {
          for (int peer = 0; peer < options_.size; ++peer) await_written(peer, number, announced);
        });
    done = true;
  });
  return done;
}

// Each rank combines a share and writes it to everyone.
void ShmTeam::combine_in_place(const SharedBlocks::Place& place, std::size_t bytes,
                               const ReduceSpec& spec) {
  const auto size = static_cast<std::size_t>(options_.size);
  const std::size_t share = ((bytes + size - 1) / size + kTeamLine - 1) / kTeamLine * kTeamLine;
  const std::size_t begin = std::min(bytes, share * static_cast<std::size_t>(options_.rank));
  const std::size_t end = std::min(bytes, begin + share);
  std::vector<const void*> parts(size);
  const auto at = [&](int rank, std::size_t position) {
    return place.block->part(rank) + place.offset + position;
  };
  for (std::size_t position = begin; position < end; position += kInPlaceBytes) {
    const std::size_t length = std::min(kInPlaceBytes, end - position);
    for (int rank = 0; rank < options_.size; ++rank) {
      parts[static_cast<std::size_t>(rank)] = at(rank, position);
    }
    std::byte* result = at(0, position);
    reduce_elements(spec, parts, static_cast<std::int64_t>(length / bytes_of(spec.type)), result,
                    size > 1 ? at(1, position) : nullptr);
    for (int rank = 2; rank < options_.size; ++rank) {
      std::memcpy(at(rank, position), result, length);
    }
  }
}

}  // namespace lockstep
