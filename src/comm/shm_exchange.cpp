#include "comm/shm_exchange.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "comm/ordered_sum.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// Contributing, adding and collecting take place on three chunks; with a fourth buffer a rank that
// is late does not stop the others at once.
constexpr std::uint32_t kBuffers = 4;
constexpr std::size_t kLine = 64;  // bytes that travel between cores together
// A chunk and its neighbours stay in a core's second-level cache.
constexpr std::size_t kChunkBytes = 256 << 10;
constexpr std::size_t kLargestSegment = 64 << 20;
// Up to this size every rank adds everything: that needs one meeting instead of two.
constexpr std::size_t kWholeBytes = 16 << 10;

constexpr auto kLongestSpin = 50us;
// How soon the death of a peer is noticed. A look costs a few microseconds.
constexpr auto kSleep = 10ms;

std::size_t chunk_bytes_for(int ranks) {
  const std::size_t fair = kLargestSegment / kBuffers / static_cast<std::size_t>(ranks);
  return std::clamp(fair / kLine * kLine, kWholeBytes, kChunkBytes);
}

// Waiting with open eyes is only good for the one who has a core for it.
std::chrono::nanoseconds longest_spin(int ranks) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 0ns;
  return CPU_COUNT(&cores) >= ranks ? kLongestSpin : 0ns;
}

}  // namespace

struct ShmExchange::RankControl {
  SharedCounter contributed;  // the number of the last chunk whose parts are in the segment
  SharedCounter reduced;      // ... whose own share has been added
  SharedCounter collected;    // ... of which nothing will be read any more
  alignas(kLine) std::array<std::uint64_t, kBuffers> announced;  // length and type, by buffer
  std::atomic<std::uint64_t> probe;
};

struct ShmExchange::Control {
  std::atomic<std::uint32_t> poisoned;
  RankControl ranks[];
};

// The part of a tensor that passes at once.
struct ShmExchange::Chunk {
  std::uint32_t number;
  std::byte* data;  // in the tensor
  std::size_t bytes;
  std::size_t share_bytes;

  std::size_t begin(int owner) const { return std::min(bytes, share_bytes * owner); }
  std::size_t size(int owner) const { return begin(owner + 1) - begin(owner); }
};

std::size_t ShmExchange::bytes_needed(int ranks) {
  return sizeof(Control) + ranks * (sizeof(RankControl) + kBuffers * chunk_bytes_for(ranks));
}

ShmExchange::ShmExchange(SharedSegment segment, ProcessWatch peers, const Options& options)
    : segment_(std::move(segment)),
      peers_(std::move(peers)),
      options_(options),
      chunk_bytes_(chunk_bytes_for(options.size)),
      spin_(longest_spin(options.size)) {
  LOCKSTEP_CHECK(segment_.bytes() >= bytes_needed(options.size), segment_.bytes(), options.size);
}

ShmExchange::Control& ShmExchange::control() const {
  return *reinterpret_cast<Control*>(segment_.data());
}

ShmExchange::RankControl& ShmExchange::of(int rank) const {
  return control().ranks[rank];
}

std::byte* ShmExchange::slot(int rank, std::uint32_t number) const {
  std::byte* first = segment_.data() + sizeof(Control) + options_.size * sizeof(RankControl);
  return first + (rank * kBuffers + number % kBuffers) * chunk_bytes_;
}

std::atomic<std::uint64_t>& ShmExchange::probe(int rank) {
  return of(rank).probe;
}

void ShmExchange::mean(const Call& call) {
  may_spin_ = !call.busy_core;
  const std::size_t bytes = call.count * c10::elementSize(call.type);
  try {
    if (bytes <= kWholeBytes) {
      exchange_whole(call);
    } else {
      exchange_shares(call);
    }
  } catch (...) {
    // The counters no longer agree.
    poison();
    throw;
  }
}

void ShmExchange::exchange_whole(const Call& call) {
  const std::size_t bytes = call.count * c10::elementSize(call.type);
  const std::uint32_t number = ++number_;
  announce(call, number);
  std::memcpy(slot(options_.rank, number), call.data, bytes);
  of(options_.rank).contributed.publish(number);

  std::vector<const void*> parts(options_.size);
  for (int rank = 0; rank < options_.size; ++rank) {
    check_announced(call, rank, number);
    parts[rank] = slot(rank, number);
  }
  ordered_mean(call.type, parts, call.count, call.divisor, call.data);
  of(options_.rank).reduced.publish(number);
  of(options_.rank).collected.publish(number);
}

void ShmExchange::exchange_shares(const Call& call) {
  const std::size_t bytes = call.count * c10::elementSize(call.type);
  const std::size_t chunks = (bytes + chunk_bytes_ - 1) / chunk_bytes_;
  const std::uint32_t first = number_ + 1;
  const auto chunk = [&](std::size_t index) {
    const std::size_t begin = index * chunk_bytes_, length = std::min(chunk_bytes_, bytes - begin);
    const std::size_t share = (length + options_.size - 1) / options_.size;
    return Chunk{.number = first + static_cast<std::uint32_t>(index),
                 .data = static_cast<std::byte*>(call.data) + begin,
                 .bytes = length,
                 .share_bytes = (share + kLine - 1) / kLine * kLine};
  };
  for (std::size_t step = 0; step < chunks + 2; ++step) {
    if (step < chunks) contribute(call, chunk(step));
    if (step >= 1 && step - 1 < chunks) reduce(call, chunk(step - 1));
    if (step >= 2) collect(chunk(step - 2));
  }
  number_ += static_cast<std::uint32_t>(chunks);
}

void ShmExchange::contribute(const Call& call, const Chunk& chunk) {
  announce(call, chunk.number);
  for (int owner = 0; owner < options_.size; ++owner) {
    if (owner == options_.rank) continue;
    const std::size_t begin = chunk.begin(owner);
    std::memcpy(slot(options_.rank, chunk.number) + begin, chunk.data + begin, chunk.size(owner));
  }
  of(options_.rank).contributed.publish(chunk.number);
}

void ShmExchange::reduce(const Call& call, const Chunk& chunk) {
  const int rank = options_.rank;
  const std::size_t begin = chunk.begin(rank), bytes = chunk.size(rank);
  std::vector<const void*> parts(options_.size);
  for (int peer = 0; peer < options_.size; ++peer) {
    check_announced(call, peer, chunk.number);
    parts[peer] = peer == rank ? chunk.data + begin : slot(peer, chunk.number) + begin;
  }
  const auto count = static_cast<std::int64_t>(bytes / c10::elementSize(call.type));
  ordered_mean(call.type, parts, count, call.divisor, chunk.data + begin);
  std::memcpy(slot(rank, chunk.number) + begin, chunk.data + begin, bytes);
  of(rank).reduced.publish(chunk.number);
}

void ShmExchange::collect(const Chunk& chunk) {
  for (int step = 1; step < options_.size; ++step) {
    const int owner = (options_.rank + step) % options_.size;
    wait_for(of(owner).reduced, chunk.number);
    const std::size_t begin = chunk.begin(owner);
    std::memcpy(chunk.data + begin, slot(owner, chunk.number) + begin, chunk.size(owner));
  }
  of(options_.rank).collected.publish(chunk.number);
}

namespace {

std::uint64_t announcement(const ShmExchange::Call& call) {
  return static_cast<std::uint64_t>(call.count) << 8 | static_cast<std::uint8_t>(call.type);
}

}  // namespace

// Takes possession of a buffer, once nobody reads its last contents any more.
void ShmExchange::announce(const Call& call, std::uint32_t number) {
  for (int peer = 0; peer < options_.size; ++peer) {
    if (peer != options_.rank) wait_for(of(peer).collected, number - kBuffers);
  }
  of(options_.rank).announced[number % kBuffers] = announcement(call);
}

void ShmExchange::check_announced(const Call& call, int peer, std::uint32_t number) {
  if (peer == options_.rank) return;
  wait_for(of(peer).contributed, number);
  const std::uint64_t theirs = of(peer).announced[number % kBuffers];
  if (theirs == announcement(call)) return;
  throw Error(concat("all_reduce: rank ", options_.rank, " of the group reduces ", call.count,
                     " elements of ", c10::toString(call.type), ", but rank ", peer, " ",
                     theirs >> 8, " of ",
                     c10::toString(static_cast<c10::ScalarType>(theirs & 0xff)),
                     "; every rank must reduce the same tensors in the same order"));
}

void ShmExchange::wait_for(SharedCounter& counter, std::uint32_t wanted) {
  const auto ready = [&] { return counter.reached(wanted); };
  if (ready() || (may_spin_ && spin_.until(ready))) return;
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  while (true) {
    // A rank may well leave or end after its last contribution, so that is looked at once more
    // after bad news.
    const bool poisoned = control().poisoned.load(std::memory_order_seq_cst) != 0;
    const bool ended = !poisoned && peers_.any_ended();
    if (ready()) return;
    // In the words that GroupGuard knows from Gloo.
    if (poisoned) throw std::runtime_error("Connection closed by peer (in shared memory)");
    if (ended) throw std::runtime_error("remote process exited (seen in shared memory)");
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error(
          concat("Timed out after ", options_.timeout.count(), " ms of waiting in shared memory"));
    }
    counter.sleep(wanted, kSleep);
    if (ready()) return;
  }
}

void ShmExchange::poison() {
  control().poisoned.store(1, std::memory_order_seq_cst);
  for (int rank = 0; rank < options_.size; ++rank) {
    of(rank).contributed.wake();
    of(rank).reduced.wake();
    of(rank).collected.wake();
  }
}

}  // namespace lockstep
