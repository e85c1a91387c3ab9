#include <cstring>

#include "lockstep/error.h"
#include "shm/team.h"
#include "shm/team_layout.h"

namespace lockstep {
namespace {

// How much of `bytes` is in piece number `index`.
std::size_t piece(std::size_t bytes, std::size_t index, std::size_t piece_bytes) {
  return std::min(piece_bytes, bytes - std::min(bytes, index * piece_bytes));
}

void copy_piece(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

const std::byte* at_offset(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

std::byte* at_offset(void* data, std::size_t offset) {
  return static_cast<std::byte*>(data) + offset;
}

}  // namespace

void ShmTeam::barrier() {
  const Announcement announced = announcement(Kind::barrier, 0);
  guarded([&] {
    pass_chunks(
        1, 0, announced, [](std::size_t, std::byte*) {},
        [&](std::size_t, std::uint32_t number) {
          for (int peer = 0; peer < options_.size; ++peer) await_written(peer, number, announced);
        });
  });
}

void ShmTeam::broadcast(Bytes data, int root) {
  const Announcement announced = announcement(Kind::broadcast, data.size, root);
  const bool mine = is_me(root);
  guarded([&] {
    pass_chunks(
        chunks_of(data.size, chunk_bytes_), 0, announced,
        [&](std::size_t index, std::byte* slot_of_mine) {
          const std::size_t bytes = piece(data.size, index, chunk_bytes_);
          if (mine) copy_piece(slot_of_mine, at_offset(data.data, index * chunk_bytes_), bytes);
        },
        [&](std::size_t index, std::uint32_t number) {
          if (mine) return;
          await_written(root, number, announced);
          copy_piece(at_offset(data.data, index * chunk_bytes_), slot(root, number),
                     piece(data.size, index, chunk_bytes_));
        });
  });
}

void ShmTeam::all_gather(ConstBytes input, const std::vector<void*>& outputs) {
  collect_from_all(input, outputs, /*wanted=*/true, announcement(Kind::all_gather, input.size));
}

void ShmTeam::gather(ConstBytes input, const std::vector<void*>& outputs, int root) {
  collect_from_all(input, outputs, is_me(root), announcement(Kind::gather, input.size, root));
}

void ShmTeam::collect_from_all(ConstBytes input, const std::vector<void*>& outputs, bool wanted,
                               const Announcement& announced) {
  guarded([&] {
    pass_chunks(
        chunks_of(input.size, chunk_bytes_), 1, announced,
        [&](std::size_t index, std::byte* mine) {
          copy_piece(mine, at_offset(input.data, index * chunk_bytes_),
                     piece(input.size, index, chunk_bytes_));
        },
        [&](std::size_t index, std::uint32_t number) {
          for (int step = 0; step < options_.size && wanted; ++step) {
            const int peer = (options_.rank + step) % options_.size;
            await_written(peer, number, announced);
            const std::size_t offset = index * chunk_bytes_;
            copy_piece(at_offset(outputs[static_cast<std::size_t>(peer)], offset),
                       is_me(peer) ? at_offset(input.data, offset) : slot(peer, number),
                       piece(input.size, index, chunk_bytes_));
          }
        });
  });
}

void ShmTeam::scatter(const std::vector<const void*>& inputs, Bytes output, int root) {
  const Announcement announced = announcement(Kind::scatter, output.size, root);
  const bool mine = is_me(root);
  guarded([&] {
    pass_chunks(
        chunks_of(output.size, part_bytes_), 0, announced,
        [&](std::size_t index, std::byte* slot_of_mine) {
          for (int peer = 0; peer < options_.size && mine; ++peer) {
            if (is_me(peer)) continue;
            const auto position = static_cast<std::size_t>(peer);
            copy_piece(slot_of_mine + position * part_bytes_,
                       at_offset(inputs[position], index * part_bytes_),
                       piece(output.size, index, part_bytes_));
          }
        },
        [&](std::size_t index, std::uint32_t number) {
          await_written(root, number, announced);
          const auto position = static_cast<std::size_t>(options_.rank);
          const std::size_t offset = index * part_bytes_;
          copy_piece(at_offset(output.data, offset),
                     mine ? at_offset(inputs[position], offset)
                          : slot(root, number) + position * part_bytes_,
                     piece(output.size, index, part_bytes_));
        });
  });
}

std::size_t ShmTeam::agree_on_sizes(const std::vector<ConstBytes>& inputs,
                                    const std::vector<Bytes>& outputs) {
  const Announcement announced = announcement(Kind::all_to_all, 0);
  std::size_t largest = 0;
  pass_chunks(
      1, 0, announced,
      [&](std::size_t, std::byte* mine) {
        for (std::size_t peer = 0; peer < inputs.size(); ++peer) {
          const std::uint64_t size = inputs[peer].size;
          std::memcpy(mine + peer * sizeof(size), &size, sizeof(size));
        }
      },
      [&](std::size_t, std::uint32_t number) {
        for (int peer = 0; peer < options_.size; ++peer) {
          await_written(peer, number, announced);
          std::vector<std::uint64_t> sizes(inputs.size());
          std::memcpy(sizes.data(), slot(peer, number), sizes.size() * sizeof(sizes[0]));
          const std::uint64_t sent = sizes[static_cast<std::size_t>(options_.rank)];
          const std::size_t expected = outputs[static_cast<std::size_t>(peer)].size;
          if (sent != expected) {
            throw Error(concat("all_to_all: rank ", peer, " of the group sends ", sent,
                               " bytes to rank ", options_.rank, ", which expects ", expected));
          }
          for (const std::uint64_t size : sizes) largest = std::max<std::size_t>(largest, size);
        }
      });
  return largest;
}

void ShmTeam::all_to_all(const std::vector<ConstBytes>& inputs, const std::vector<Bytes>& outputs) {
  guarded([&] {
    const std::size_t largest = agree_on_sizes(inputs, outputs);
    const Announcement announced = announcement(Kind::all_to_all, largest);
    pass_chunks(
        chunks_of(largest, part_bytes_), 1, announced,
        [&](std::size_t index, std::byte* mine) {
          for (int peer = 0; peer < options_.size; ++peer) {
            if (is_me(peer)) continue;
            const auto position = static_cast<std::size_t>(peer);
            copy_piece(mine + position * part_bytes_,
                       at_offset(inputs[position].data, index * part_bytes_),
                       piece(inputs[position].size, index, part_bytes_));
          }
        },
        [&](std::size_t index, std::uint32_t number) {
          const auto own = static_cast<std::size_t>(options_.rank);
          for (int step = 0; step < options_.size; ++step) {
            const int peer = (options_.rank + step) % options_.size;
            const auto position = static_cast<std::size_t>(peer);
            await_written(peer, number, announced);
            copy_piece(at_offset(outputs[position].data, index * part_bytes_),
                       is_me(peer) ? at_offset(inputs[own].data, index * part_bytes_)
                                   : slot(peer, number) + own * part_bytes_,
                       piece(outputs[position].size, index, part_bytes_));
          }
        });
  });
}

}  // namespace lockstep
