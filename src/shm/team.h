#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shm/element.h"
#include "shm/futex.h"
#include "shm/shared_block.h"
#include "shm/shared_segment.h"

namespace lockstep {

/// Ranks of one machine that work together through memory which they share.
///
/// Data passes in chunks, which are numbered through all calls. Every rank has a few buffers in the
/// segment and writes chunk n into buffer n modulo their number, once nobody reads its last
/// contents any more. Reductions are in rank order, element by element (reduce_elements()), so that
/// results depend on the ranks' numbers alone and not on how tensors are cut.
///
/// Waiting ends with an exception when a peer's process ends, when someone poisons the segment, or
/// after the time-out. Any exception leaves the team poisoned, because counters no longer agree.
///
/// One thread at a time, the same calls in the same order on every rank; poison() is thread-safe.
class ShmTeam {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::chrono::milliseconds timeout{};
    std::function<bool()> peer_ended;  // whether a peer's process has ended; called now and then
    /// Where tensors may lie that are reduced without being copied; every rank has it, or none.
    std::shared_ptr<const SharedBlocks> blocks = nullptr;
  };

  /// Beyond it a chunk could not be cut into parts for everyone.
  static constexpr int kMostRanks = 256;

  /// What the segment of this many ranks must hold.
  static std::size_t bytes_needed(int ranks);

  /// What a rank reserves of it: its own buffers, and the first rank what all use.
  static SharedSegment::Range own_range(int rank, int ranks);

  /// `segment` was zeroed before its first use.
  ShmTeam(std::shared_ptr<const SharedSegment> segment, Options options);

  struct Bytes {
    void* data = nullptr;
    std::size_t size = 0;
  };
  struct ConstBytes {
    const void* data = nullptr;
    std::size_t size = 0;
  };

  /// What a rank is about to do, for the others to compare with.
  enum class Kind : std::uint8_t {
    barrier,
    all_reduce,
    reduce,
    reduce_scatter,
    broadcast,
    all_gather,
    gather,
    scatter,
    all_to_all,
  };
  struct Announcement {
    std::uint64_t what = 0;  // kind, type, operator and root
    std::uint64_t length = 0;
    bool operator==(const Announcement&) const = default;
  };
  static const char* name_of_kind(Kind kind);
  static Announcement announcement(Kind kind, std::uint64_t length, int root = 0,
                                   const ReduceSpec* spec = nullptr);
  static std::string describe(const Announcement& announcement);

  void barrier();

  /// In place on every rank. Large data that all ranks have at the same place of one block is not
  /// copied.
  void all_reduce(void* data, std::int64_t count, const ReduceSpec& spec);
  /// In place at the root; the others' data stays as it was.
  void reduce(void* data, std::int64_t count, const ReduceSpec& spec, int root);
  /// `inputs`: `count` elements for each rank. `out` may be this rank's own part of them.
  void reduce_scatter(const std::vector<const void*>& inputs, void* out, std::int64_t count,
                      const ReduceSpec& spec);

  void broadcast(Bytes data, int root);
  /// `outputs`: one for each rank, of the input's size.
  void all_gather(ConstBytes input, const std::vector<void*>& outputs);
  /// `outputs` is empty except at the root.
  void gather(ConstBytes input, const std::vector<void*>& outputs, int root);
  /// `inputs` is empty except at the root.
  void scatter(const std::vector<const void*>& inputs, Bytes output, int root);
  /// One of each for each rank; sizes may differ, but what one sends the other must expect.
  void all_to_all(const std::vector<ConstBytes>& inputs, const std::vector<Bytes>& outputs);

  /// Whether this core has something else to compute: then waits do not spin.
  void set_busy_core(bool busy) { may_spin_ = !busy; }

  void set_timeout(std::chrono::milliseconds timeout) { options_.timeout = timeout; }

  /// Ends waits in all ranks, now and from now on. What has been handed over stays valid, so a rank
  /// that only has to read it is not disturbed.
  void poison();

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

 private:
  struct Control;
  struct RankControl;
  struct Chunk;

  Control& control() const;
  RankControl& of(int rank) const;
  std::byte* slot(int rank, std::uint32_t number) const;
  bool is_me(int rank) const { return rank == options_.rank; }

  template <typename Body>
  void guarded(Body body);

  /// Chunks of one call: each is written, and `lag` chunks later read.
  template <typename Write, typename Read>
  void pass_chunks(std::size_t chunks, std::uint32_t lag, const Announcement& announced,
                   Write write, Read read);

  /// False where data does not lie side by side; nothing has been done then.
  bool all_reduce_in_place(void* data, std::int64_t count, const ReduceSpec& spec,
                           const Announcement& announced);
  bool lies_side_by_side(const SharedBlocks::Place& place, const Announcement& announced);
  void combine_in_place(const SharedBlocks::Place& place, std::size_t bytes,
                        const ReduceSpec& spec);

  /// `wanted`: whether this rank gets the result.
  void reduce_data(void* data, std::int64_t count, const ReduceSpec& spec, bool wanted,
                   const Announcement& announced);
  void reduce_whole(void* data, std::int64_t count, const ReduceSpec& spec, bool wanted,
                    const Announcement& announced);
  void reduce_shares(void* data, std::size_t bytes, const ReduceSpec& spec, bool wanted,
                     const Announcement& announced);
  void contribute_shares(const Chunk& chunk, const Announcement& announced);
  void combine_share(const Chunk& chunk, const ReduceSpec& spec, bool wanted,
                     const Announcement& announced);
  void collect_shares(const Chunk& chunk, bool wanted);

  /// All-gather and gather: everybody writes, those who want it read.
  void collect_from_all(ConstBytes input, const std::vector<void*>& outputs, bool wanted,
                        const Announcement& announced);
  /// Compares what every rank sends and expects; returns the largest part of all.
  std::size_t agree_on_sizes(const std::vector<ConstBytes>& inputs,
                             const std::vector<Bytes>& outputs);

  std::size_t chunks_of(std::size_t bytes, std::size_t chunk_bytes) const;

  void acquire(std::uint32_t number, const Announcement& announced);
  void publish_written(std::uint32_t number);
  void await_written(int peer, std::uint32_t number, const Announcement& announced);
  void publish_read(std::uint32_t number);
  void wait_for(SharedCounter& counter, std::uint32_t wanted);

  std::shared_ptr<const SharedSegment> segment_;
  Options options_;
  std::size_t chunk_bytes_;
  std::size_t part_bytes_;    // of a chunk that is cut into parts for each rank
  std::uint32_t number_ = 0;  // of the last chunk
  Spin spin_;
  bool may_spin_ = true;
};

}  // namespace lockstep
