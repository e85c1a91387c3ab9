#include "tests/kernels/on_cpu/block.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/kernels/on_cpu/machine.h"
#include "tests/kernels/on_cpu/words.h"

namespace lockstep::kernels::on_cpu {
namespace {

constexpr std::size_t kAlignment = 1024;

}  // namespace

void Block::Free::operator()(unsigned char* memory) const {
  std::free(memory);
}

Block::Block(unsigned rank, int threads, int shared_bytes)
    : rank_(rank), threads_(threads), bytes_(static_cast<unsigned>(shared_bytes)) {
  memory_ = nothing(bytes_);
  hidden_.resize(room_for(bytes_) / kUnit);
  for (int i = 0; i < threads; i += kWarpThreads) warps_.emplace_back(kWarpThreads);
  for (int i = 0; i + kThreadsOfGroup <= threads; i += kThreadsOfGroup) groups_.emplace_back();
}

// What was asked for ends before this, so that it is seen where a kernel writes on.
std::size_t Block::room_for(std::size_t bytes) {
  return (bytes / kAlignment + 1) * kAlignment;
}

Block::Memory Block::nothing(std::size_t bytes) {
  Memory memory(static_cast<unsigned char*>(std::aligned_alloc(kAlignment, room_for(bytes))));
  std::memset(memory.get(), kNothing, room_for(bytes));
  return memory;
}

void Block::check_end_of(const Memory& memory, std::size_t bytes) {
  const auto is_written = [](unsigned char byte) { return byte != kNothing; };
  if (std::any_of(memory.get() + bytes, memory.get() + room_for(bytes), is_written)) {
    fail(words("the block has written past the end of ", bytes, " bytes of shared memory"));
  }
}

unsigned char* Block::variable(const void* key, std::size_t bytes) {
  Variable& found = variables_[key];
  if (found.memory == nullptr) {
    found = {nothing(bytes), bytes};
    bytes_of_variables_ += bytes;
    if (bytes_of_variables_ + bytes_ > kMostShared) fail("variables take too much shared memory");
  }
  return found.memory.get();
}

unsigned Block::address_of(const void* pointer) const {
  const auto* byte = static_cast<const unsigned char*>(pointer);
  if (byte < memory_.get() || byte > memory_.get() + bytes_) {
    fail("shared_address() of what is not in the block's shared memory");
  }
  return static_cast<unsigned>(byte - memory_.get()) + kFirstAddress;
}

unsigned char* Block::at(unsigned address, unsigned bytes, const char* call) const {
  if (address < kFirstAddress || std::uint64_t{address} - kFirstAddress + bytes > bytes_) {
    fail(words(call, ": ", bytes, " bytes at shared address ", hex(address),
               " are outside of the block's ", bytes_, " bytes"));
  }
  return memory_.get() + (address - kFirstAddress);
}

Group& Block::group(int thread) {
  const auto group = static_cast<std::size_t>(thread / kThreadsOfGroup);
  if (group >= groups_.size()) fail("products need a whole group of 128 threads");
  return groups_[group];
}

void Block::hide(unsigned address, Fiber& by) {
  const unsigned unit = (address - kFirstAddress) / kUnit;
  ++hidden_[unit];
  by.hidden.push_back(unit);
}

void Block::show_writes(Fiber& of) {
  for (const unsigned unit : of.hidden) --hidden_[unit];
  of.hidden.clear();
}

void Block::check_visible(unsigned address, const char* call) const {
  if (hidden_[(address - kFirstAddress) / kUnit] > 0) {
    fail(words(call, ": what a warp stored at shared address ", hex(address),
               " was not published to copies"));
  }
}

void Block::end_thread(Fiber& fiber) {
  ++ended_;
  warp(fiber.thread).leave();
  const auto group = static_cast<std::size_t>(fiber.thread / kThreadsOfGroup);
  if (group < groups_.size()) {
    groups_[group].leave(static_cast<std::size_t>(fiber.thread % kThreadsOfGroup / kWarpThreads));
  }
  const auto unread = [](const Works& works) {
    return std::ranges::any_of(works, [](const auto& work) { return !work->done; });
  };
  if (unread(fiber.open_stores) || std::ranges::any_of(fiber.stores, unread)) {
    fail(
        "ended while copies that it started still read shared memory: wait_for_reads() is missing");
  }
  if (!has_ended()) return;
  check_end_of(memory_, bytes_);
  for (const auto& [key, variable] : variables_) check_end_of(variable.memory, variable.bytes);
  for (const auto& [address, barrier] : barriers_) {
    if (barrier.bytes != 0) {
      fail(words("the block ended while the barrier at shared address ", hex(address), " expected ",
                 barrier.bytes, " more bytes"));
    }
  }
}

}  // namespace lockstep::kernels::on_cpu
