#include "shm/team.h"

#include <sched.h>

#include <stdexcept>
#include <utility>

#include "lockstep/error.h"
#include "shm/team_layout.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// A chunk and its neighbours stay in a core's second-level cache.
constexpr std::size_t kChunkBytes = 128 << 10;
constexpr std::size_t kLargestSegment = 64 << 20;

constexpr auto kLongestSpin = 50us;
// How soon the death of a peer is noticed. A look costs a few microseconds.
constexpr auto kSleep = 10ms;

std::size_t chunk_bytes_for(int ranks) {
  const std::size_t fair = kLargestSegment / kTeamBuffers / static_cast<std::size_t>(ranks);
  return std::clamp(fair / kTeamLine * kTeamLine, kTeamWholeBytes, kChunkBytes);
}

// Waiting with open eyes is only good for the one who has a core for it.
std::chrono::nanoseconds longest_spin(int ranks) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 0ns;
  return CPU_COUNT(&cores) >= ranks ? kLongestSpin : 0ns;
}

}  // namespace

std::size_t ShmTeam::bytes_needed(int ranks) {
  return sizeof(Control) + static_cast<std::size_t>(ranks) *
                               (sizeof(RankControl) + kTeamBuffers * chunk_bytes_for(ranks));
}

SharedSegment::Range ShmTeam::own_range(int rank, int ranks) {
  const std::size_t buffers = kTeamBuffers * chunk_bytes_for(ranks);
  const std::size_t head = sizeof(Control) + static_cast<std::size_t>(ranks) * sizeof(RankControl);
  if (rank == 0) return {.begin = 0, .bytes = head + buffers};
  return {.begin = head + static_cast<std::size_t>(rank) * buffers, .bytes = buffers};
}

ShmTeam::ShmTeam(std::shared_ptr<const SharedSegment> segment, Options options)
    : segment_(std::move(segment)),
      options_(std::move(options)),
      chunk_bytes_(chunk_bytes_for(options_.size)),
      part_bytes_(chunk_bytes_ / static_cast<std::size_t>(options_.size) / kTeamLine * kTeamLine),
      spin_(longest_spin(options_.size)) {
  LOCKSTEP_CHECK(segment_->bytes() >= bytes_needed(options_.size), segment_->bytes(),
                 options_.size);
  LOCKSTEP_CHECK(options_.size <= kMostRanks, options_.size);
}

ShmTeam::Control& ShmTeam::control() const {
  return *reinterpret_cast<Control*>(segment_->data());
}

ShmTeam::RankControl& ShmTeam::of(int rank) const {
  return control().ranks[rank];
}

std::byte* ShmTeam::slot(int rank, std::uint32_t number) const {
  const auto size = static_cast<std::size_t>(options_.size);
  std::byte* first = segment_->data() + sizeof(Control) + size * sizeof(RankControl);
  const std::size_t index = static_cast<std::size_t>(rank) * kTeamBuffers + number % kTeamBuffers;
  return first + index * chunk_bytes_;
}

const char* ShmTeam::name_of_kind(Kind kind) {
  switch (kind) {
    case Kind::barrier:
      return "barrier";
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::reduce:
      return "reduce";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::broadcast:
      return "broadcast";
    case Kind::all_gather:
      return "all_gather";
    case Kind::gather:
      return "gather";
    case Kind::scatter:
      return "scatter";
    case Kind::all_to_all:
      return "all_to_all";
  }
  return "?";
}

ShmTeam::Announcement ShmTeam::announcement(Kind kind, std::uint64_t length, int root,
                                            const ReduceSpec* spec) {
  std::uint64_t what = static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(root) << 32;
  if (spec != nullptr) {
    what |= static_cast<std::uint64_t>(spec->type) << 8 |
            static_cast<std::uint64_t>(spec->op) << 16 | std::uint64_t{1} << 24;
  }
  return {.what = what, .length = length};
}

std::string ShmTeam::describe(const Announcement& announced) {
  std::string text = name_of_kind(static_cast<Kind>(announced.what & 0xff));
  if ((announced.what >> 24 & 1) != 0) {
    text += concat(" (", name_of(static_cast<ReduceOperator>(announced.what >> 16 & 0xff)), ") of ",
                   announced.length, " elements of ",
                   name_of(static_cast<ElementType>(announced.what >> 8 & 0xff)));
  } else if (announced.length != 0) {
    text += concat(" of ", announced.length, " bytes");
  }
  if (announced.what >> 32 != 0) text += concat(", root ", announced.what >> 32);
  return text;
}

// Takes possession of a buffer, once nobody reads its last contents any more.
void ShmTeam::acquire(std::uint32_t number, const Announcement& announced) {
  for (int peer = 0; peer < options_.size; ++peer) {
    if (!is_me(peer)) wait_for(of(peer).read, number - kTeamBuffers);
  }
  of(options_.rank).announced[number % kTeamBuffers] = announced;
}

void ShmTeam::publish_written(std::uint32_t number) {
  of(options_.rank).written.publish(number);
}

// Counters that a call does not need move on, too: they are compared by distance.
void ShmTeam::publish_read(std::uint32_t number) {
  of(options_.rank).reduced.publish(number);
  of(options_.rank).read.publish(number);
}

void ShmTeam::await_written(int peer, std::uint32_t number, const Announcement& announced) {
  if (is_me(peer)) return;
  wait_for(of(peer).written, number);
  const Announcement theirs = of(peer).announced[number % kTeamBuffers];
  if (theirs == announced) return;
  throw Error(concat("rank ", options_.rank, " of the group calls ", describe(announced),
                     ", but rank ", peer, " ", describe(theirs),
                     "; every rank must reduce the same tensors in the same order"));
}

void ShmTeam::wait_for(SharedCounter& counter, std::uint32_t wanted) {
  const auto ready = [&] { return counter.reached(wanted); };
  if (ready() || (may_spin_ && spin_.until(ready))) return;
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  while (true) {
    // A rank may well leave or end after its last contribution, so that is looked at once more
    // after bad news.
    const bool poisoned = control().poisoned.load(std::memory_order_seq_cst) != 0;
    const bool ended = !poisoned && options_.peer_ended && options_.peer_ended();
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

void ShmTeam::poison() {
  control().poisoned.store(1, std::memory_order_seq_cst);
  for (int rank = 0; rank < options_.size; ++rank) {
    of(rank).written.wake();
    of(rank).reduced.wake();
    of(rank).read.wake();
  }
}

}  // namespace lockstep
