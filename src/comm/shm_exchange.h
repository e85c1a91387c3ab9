#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include <c10/core/ScalarType.h>

#include "comm/futex.h"
#include "comm/process_watch.h"
#include "comm/shared_segment.h"

namespace lockstep {

/// The ordered mean of tensors of several ranks through memory that they share. The bits are those
/// of docs/determinism.md.
///
/// A tensor passes in chunks. Of every chunk each rank owns a share: the others copy their part of
/// it into the segment, the owner adds them to its own in rank order, and the others copy the
/// result. A rank contributes to one chunk, adds its share of the one before and collects the one
/// before that, so nobody waits for what a peer is doing just now.
///
/// Waiting ends with an exception when a peer's process ends, when someone poisons the segment, or
/// after the time-out.
///
/// One thread at a time, in the same order on every rank; poison() is thread-safe.
class ShmExchange {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::chrono::milliseconds timeout{};
  };

  /// What the segment of this many ranks must hold.
  static std::size_t bytes_needed(int ranks);

  /// `segment` was zeroed before its first use.
  ShmExchange(SharedSegment segment, ProcessWatch peers, const Options& options);

  struct Call {
    void* data = nullptr;  // the contribution, and the mean in the end
    std::int64_t count = 0;
    c10::ScalarType type{};
    double divisor = 1;
    bool busy_core = false;  // this core has something else to compute: do not spin
  };
  void mean(const Call& call);

  /// Ends waits in all ranks, now and from now on. What has been handed over stays valid, so a rank
  /// that only has to read it is not disturbed.
  void poison();

  /// A word per rank that nothing else uses, by which ranks find out whether they see the same
  /// memory.
  std::atomic<std::uint64_t>& probe(int rank);

 private:
  struct Control;
  struct RankControl;
  struct Chunk;

  Control& control() const;
  RankControl& of(int rank) const;
  std::byte* slot(int rank, std::uint32_t number) const;

  void exchange_whole(const Call& call);
  void exchange_shares(const Call& call);
  void contribute(const Call& call, const Chunk& chunk);
  void reduce(const Call& call, const Chunk& chunk);
  void collect(const Chunk& chunk);

  void announce(const Call& call, std::uint32_t number);
  void check_announced(const Call& call, int peer, std::uint32_t number);
  void wait_for(SharedCounter& counter, std::uint32_t wanted);

  SharedSegment segment_;
  ProcessWatch peers_;
  Options options_;
  std::size_t chunk_bytes_;
  std::uint32_t number_ = 0;  // of the last chunk; chunks of all calls are numbered through
  Spin spin_;
  bool may_spin_ = false;
};

}  // namespace lockstep
