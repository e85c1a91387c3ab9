#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tests/kernels/on_cpu/fiber.h"
#include "tests/kernels/on_cpu/group.h"
#include "tests/kernels/on_cpu/meeting.h"

namespace lockstep::kernels::on_cpu {

inline constexpr int kWarpThreads = 32;
inline constexpr int kThreadsOfGroup = 128;
/// Shared memory begins here, as 0 would be a good address otherwise.
inline constexpr unsigned kFirstAddress = 1024;
inline constexpr unsigned kMostShared = 227 << 10;  // of a Hopper block
inline constexpr unsigned kUnit = 16;               // bytes that a swizzle keeps together
/// Every value that nobody wrote is a NaN.
inline constexpr unsigned char kNothing = 0xff;

/// A barrier in shared memory. Only a mark lies there.
struct BarrierState {
  int arrivals = 0;          // of a phase
  int missing = 0;           // of them, in this phase
  std::int64_t bytes = 0;    // that it still expects
  std::int64_t loading = 0;  // that are on their way to it
  unsigned phase = 0;
  bool is_published = false;
  std::vector<Fiber*> waiting;
};

/// A barrier by a number.
struct NamedBarrier {
  unsigned threads = 0, arrived = 0;
  std::bitset<1024> who;
  std::vector<Fiber*> waiting;
};

/// A block's memory, barriers and warps.
class Block {
 public:
  Block(unsigned rank, int threads, int shared_bytes);

  unsigned rank() const { return rank_; }
  unsigned char* memory() { return memory_.get(); }
  unsigned bytes() const { return bytes_; }
  /// Static shared memory: the variable of this key, which is of that size.
  unsigned char* variable(const void* key, std::size_t bytes);

  unsigned address_of(const void* pointer) const;
  /// Fails, naming the call, where the bytes are not all in the block's memory.
  unsigned char* at(unsigned address, unsigned bytes, const char* call) const;
  /// Where the device puts 16 bytes of a swizzled tile.
  static unsigned swizzled(unsigned address) { return address ^ ((address >> 7 & 7) << 4); }

  Meeting& warp(int thread) { return warps_[static_cast<std::size_t>(thread / kWarpThreads)]; }
  Group& group(int thread);
  NamedBarrier& named_barrier(unsigned number) { return named_barriers_.at(number); }
  std::unordered_map<unsigned, BarrierState>& barriers() { return barriers_; }

  // Writes of threads which copies and products may not see yet.
  void hide(unsigned address, Fiber& by);
  void show_writes(Fiber& of);
  void check_visible(unsigned address, const char* call) const;

  void end_thread(Fiber& fiber);
  bool has_ended() const { return ended_ == threads_; }

 private:
  struct Free {
    void operator()(unsigned char* memory) const;
  };
  using Memory = std::unique_ptr<unsigned char, Free>;
  struct Variable {
    Memory memory;
    std::size_t bytes;
  };

  static std::size_t room_for(std::size_t bytes);
  static Memory nothing(std::size_t bytes);
  static void check_end_of(const Memory& memory, std::size_t bytes);

  unsigned rank_;
  int threads_, ended_ = 0;
  unsigned bytes_;
  Memory memory_;
  std::unordered_map<const void*, Variable> variables_;
  std::size_t bytes_of_variables_ = 0;
  std::vector<unsigned short> hidden_;  // by how many threads, of each 16 bytes
  std::deque<Meeting> warps_;
  std::deque<Group> groups_;
  std::array<NamedBarrier, 16> named_barriers_;
  std::unordered_map<unsigned, BarrierState> barriers_;
};

}  // namespace lockstep::kernels::on_cpu
