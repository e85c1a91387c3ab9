#include "lockstep/cpu_memory.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

namespace lockstep {
namespace {

// Blocks are handed out with their size before them. Tensors want addresses that are a multiple of
// 64.
struct alignas(64) Header {
  std::size_t bytes = 0;   // of the block, this included
  std::size_t wanted = 0;  // of the tensor
};
static_assert(sizeof(Header) == 64);

constexpr std::size_t kSmallest = 64 << 10;  // the system's allocator is good at smaller ones

// Up to an eighth more, so that tensors of nearly the same size share blocks.
std::size_t block_bytes(std::size_t wanted) {
  const std::size_t bytes = wanted + sizeof(Header);
  if (bytes < kSmallest) return bytes;
  const std::size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

class ReusingAllocator final : public c10::Allocator {
 public:
  /// There is one for the whole process, as there is one registry of allocators in libtorch. It is
  /// never destroyed: tensors may outlive anything else.
  static ReusingAllocator& instance() {
    static auto* const allocator = new ReusingAllocator;
    return *allocator;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(c10::kCPU);
    if (bytes == 0) return {nullptr, nullptr, &free_block, device};
    const std::size_t size = block_bytes(bytes);
    void* block = take(size, bytes);
    if (block == nullptr) block = c10::alloc_cpu(size);
    *static_cast<Header*>(block) = {.bytes = size, .wanted = bytes};
    void* const data = static_cast<std::byte*>(block) + sizeof(Header);
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &free_block, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  CpuMemory memory() {
    const std::lock_guard lock(mutex_);
    return memory_;
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    memory_.peak_tensor_bytes = memory_.tensor_bytes;
  }

 private:
  static void free_block(void* data) {
    if (data == nullptr) return;
    c10::profiledCPUMemoryReporter().Delete(data);
    void* const block = static_cast<std::byte*>(data) - sizeof(Header);
    if (!instance().keep(block)) c10::free_cpu(block);
  }

  void* take(std::size_t size, std::size_t wanted) {
    const std::lock_guard lock(mutex_);
    memory_.in_use_bytes += size;
    memory_.peak_bytes = std::max(memory_.peak_bytes, memory_.in_use_bytes);
    memory_.tensor_bytes += wanted;
    memory_.peak_tensor_bytes = std::max(memory_.peak_tensor_bytes, memory_.tensor_bytes);
    if (size < kSmallest) return nullptr;
    const auto found = blocks_.find(size);
    if (found == blocks_.end() || found->second.empty()) return nullptr;
    void* const block = found->second.back();
    found->second.pop_back();
    memory_.kept_bytes -= size;
    return block;
  }

  bool keep(void* block) {
    const auto [size, wanted] = *static_cast<const Header*>(block);
    const std::lock_guard lock(mutex_);
    memory_.in_use_bytes -= size;
    memory_.tensor_bytes -= wanted;
    if (size < kSmallest || memory_.kept_bytes + size > memory_.peak_bytes) return false;
    blocks_[size].push_back(block);
    memory_.kept_bytes += size;
    return true;
  }

  std::mutex mutex_;
  std::unordered_map<std::size_t, std::vector<void*>> blocks_;  // by size
  CpuMemory memory_;
};

}  // namespace

void reuse_cpu_memory() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetCPUAllocator(&ReusingAllocator::instance(), /*priority=*/1); });
}

CpuMemory cpu_memory() {
  return ReusingAllocator::instance().memory();
}

void reset_cpu_memory_peak() {
  ReusingAllocator::instance().reset_peak();
}

}  // namespace lockstep
