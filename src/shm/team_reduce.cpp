#include <cstring>

#include "shm/reduce.h"
#include "shm/team.h"
#include "shm/team_layout.h"

namespace lockstep {

// Even nothing at all passes as one chunk, so that ranks which disagree about it find out.
std::size_t ShmTeam::chunks_of(std::size_t bytes, std::size_t chunk_bytes) const {
  return std::max<std::size_t>(1, (bytes + chunk_bytes - 1) / chunk_bytes);
}

void ShmTeam::all_reduce(void* data, std::int64_t count, const ReduceSpec& spec) {
  check_reducible(spec);
  const Announcement announced =
      announcement(Kind::all_reduce, static_cast<std::uint64_t>(count), 0, &spec);
  if (all_reduce_in_place(data, count, spec, announced)) return;
  reduce_data(data, count, spec, /*wanted=*/true, announced);
}

void ShmTeam::reduce(void* data, std::int64_t count, const ReduceSpec& spec, int root) {
  check_reducible(spec);
  reduce_data(data, count, spec, is_me(root),
              announcement(Kind::reduce, static_cast<std::uint64_t>(count), root, &spec));
}

void ShmTeam::reduce_data(void* data, std::int64_t count, const ReduceSpec& spec, bool wanted,
                          const Announcement& announced) {
  const std::size_t bytes = static_cast<std::size_t>(count) * bytes_of(spec.type);
  guarded([&] {
    if (bytes <= kTeamWholeBytes) {
      reduce_whole(data, count, spec, wanted, announced);
    } else {
      reduce_shares(data, bytes, spec, wanted, announced);
    }
  });
}

// Everyone writes everything, and whoever wants the result combines all of it.
void ShmTeam::reduce_whole(void* data, std::int64_t count, const ReduceSpec& spec, bool wanted,
                           const Announcement& announced) {
  const std::size_t bytes = static_cast<std::size_t>(count) * bytes_of(spec.type);
  pass_chunks(
      1, 0, announced,
      [&](std::size_t, std::byte* mine) {
        if (bytes > 0) std::memcpy(mine, data, bytes);
      },
      [&](std::size_t, std::uint32_t number) {
        if (!wanted) return;
        std::vector<const void*> parts(static_cast<std::size_t>(options_.size));
        for (int peer = 0; peer < options_.size; ++peer) {
          await_written(peer, number, announced);
          parts[static_cast<std::size_t>(peer)] = slot(peer, number);
        }
        reduce_elements(spec, parts, count, data);
      });
}

// Of every chunk each rank owns a share: the others write their part of it, the owner combines them
// with its own, and who wants the result reads it there. A rank writes one chunk, combines its
// share of the one before and collects the one before that, so nobody waits for what a peer is
// doing just now.
void ShmTeam::reduce_shares(void* data, std::size_t bytes, const ReduceSpec& spec, bool wanted,
                            const Announcement& announced) {
  const std::size_t chunks = chunks_of(bytes, chunk_bytes_);
  const std::uint32_t first = number_ + 1;
  const auto size = static_cast<std::size_t>(options_.size);
  const auto chunk = [&](std::size_t index) {
    const std::size_t begin = index * chunk_bytes_;
    const std::size_t length = std::min(chunk_bytes_, bytes - begin);
    const std::size_t share = (length + size - 1) / size;
    return Chunk{.number = first + static_cast<std::uint32_t>(index),
                 .data = static_cast<std::byte*>(data) + begin,
                 .bytes = length,
                 .share_bytes = (share + kTeamLine - 1) / kTeamLine * kTeamLine};
  };
  for (std::size_t step = 0; step < chunks + 2; ++step) {
    if (step < chunks) contribute_shares(chunk(step), announced);
    if (step >= 1 && step - 1 < chunks) combine_share(chunk(step - 1), spec, wanted, announced);
    if (step >= 2) collect_shares(chunk(step - 2), wanted);
  }
  number_ += static_cast<std::uint32_t>(chunks);
}

void ShmTeam::contribute_shares(const Chunk& chunk, const Announcement& announced) {
  acquire(chunk.number, announced);
  for (int owner = 0; owner < options_.size; ++owner) {
    if (is_me(owner)) continue;
    const std::size_t begin = chunk.begin(owner);
    std::memcpy(slot(options_.rank, chunk.number) + begin, chunk.data + begin, chunk.size(owner));
  }
  publish_written(chunk.number);
}

void ShmTeam::combine_share(const Chunk& chunk, const ReduceSpec& spec, bool wanted,
                            const Announcement& announced) {
  const std::size_t begin = chunk.begin(options_.rank);
  std::vector<const void*> parts(static_cast<std::size_t>(options_.size));
  for (int peer = 0; peer < options_.size; ++peer) {
    await_written(peer, chunk.number, announced);
    parts[static_cast<std::size_t>(peer)] =
        (is_me(peer) ? chunk.data : slot(peer, chunk.number)) + begin;
  }
  const auto count = static_cast<std::int64_t>(chunk.size(options_.rank) / bytes_of(spec.type));
  reduce_elements(spec, parts, count, slot(options_.rank, chunk.number) + begin,
                  wanted ? chunk.data + begin : nullptr);
  of(options_.rank).reduced.publish(chunk.number);
}

void ShmTeam::collect_shares(const Chunk& chunk, bool wanted) {
  for (int step = 1; step < options_.size && wanted; ++step) {
    const int owner = (options_.rank + step) % options_.size;
    wait_for(of(owner).reduced, chunk.number);
    const std::size_t begin = chunk.begin(owner);
    std::memcpy(chunk.data + begin, slot(owner, chunk.number) + begin, chunk.size(owner));
  }
  // Not publish_read(): the own share of later chunks may have been combined already.
  of(options_.rank).read.publish(chunk.number);
}

void ShmTeam::reduce_scatter(const std::vector<const void*>& inputs, void* out, std::int64_t count,
                             const ReduceSpec& spec) {
  check_reducible(spec);
  const Announcement announced =
      announcement(Kind::reduce_scatter, static_cast<std::uint64_t>(count), 0, &spec);
  const std::size_t bytes = static_cast<std::size_t>(count) * bytes_of(spec.type);
  const auto part = [&](std::size_t index) {
    return std::min(part_bytes_, bytes - std::min(bytes, index * part_bytes_));
  };
  const auto input = [&](int rank, std::size_t index) {
    return static_cast<const std::byte*>(inputs[static_cast<std::size_t>(rank)]) +
           index * part_bytes_;
  };
  guarded([&] {
    pass_chunks(
        chunks_of(bytes, part_bytes_), 1, announced,
        [&](std::size_t index, std::byte* mine) {
          for (int peer = 0; peer < options_.size; ++peer) {
            if (is_me(peer) || part(index) == 0) continue;
            std::memcpy(mine + static_cast<std::size_t>(peer) * part_bytes_, input(peer, index),
                        part(index));
          }
        },
        [&](std::size_t index, std::uint32_t number) {
          std::vector<const void*> parts(static_cast<std::size_t>(options_.size));
          const std::size_t own = static_cast<std::size_t>(options_.rank) * part_bytes_;
          for (int peer = 0; peer < options_.size; ++peer) {
            await_written(peer, number, announced);
            parts[static_cast<std::size_t>(peer)] =
                is_me(peer) ? input(peer, index) : slot(peer, number) + own;
          }
          reduce_elements(spec, parts, static_cast<std::int64_t>(part(index) / bytes_of(spec.type)),
                          static_cast<std::byte*>(out) + index * part_bytes_);
        });
  });
}

}  // namespace lockstep
