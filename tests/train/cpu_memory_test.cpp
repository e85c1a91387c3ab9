#include "lockstep/cpu_memory.h"

#include <thread>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

using namespace lockstep;

namespace {

const float* address_of(const at::Tensor& tensor) {
  return tensor.const_data_ptr<float>();
}

}  // namespace

TEST(CpuMemory, a_freed_tensor_gives_its_memory_to_the_next_of_its_size) {
  const at::Tensor before = at::full({100000}, 3.f);  // of the allocator that was there first
  reuse_cpu_memory();
  reuse_cpu_memory();
  at::Tensor first = at::empty({1000, 1000});
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address_of(first)) % 64, 0u);
  const float* const place = address_of(first);
  first = at::Tensor();
  const at::Tensor second = at::empty({999, 1000});
  EXPECT_EQ(address_of(second), place);
  const at::Tensor third = at::empty({999, 1000});
  EXPECT_NE(address_of(third), place);
  EXPECT_EQ(before.sum().item<float>(), 300000);
}

TEST(CpuMemory, not_more_is_kept_than_was_in_use_at_once) {
  reuse_cpu_memory();
  const std::uint64_t base = cpu_memory().in_use_bytes;
  for (std::int64_t size = 100000; size < 3000000; size += 50000) at::empty({size});
  const CpuMemory memory = cpu_memory();
  EXPECT_EQ(memory.in_use_bytes, base);
  EXPECT_LE(memory.kept_bytes, memory.peak_bytes);
  EXPECT_GT(memory.kept_bytes, 0u);
}

TEST(CpuMemory, the_peak_of_tensors_is_what_they_asked_for) {
  reuse_cpu_memory();
  reset_cpu_memory_peak();
  const std::uint64_t base = cpu_memory().tensor_bytes;
  { const at::Tensor first = at::empty({100001}), second = at::empty({50001}); }
  EXPECT_EQ(cpu_memory().tensor_bytes, base);
  EXPECT_EQ(cpu_memory().peak_tensor_bytes, base + 4 * 150002);
  reset_cpu_memory_peak();
  EXPECT_EQ(cpu_memory().peak_tensor_bytes, base);
}

TEST(CpuMemory, sizes_of_nothing_and_of_little_work) {
  reuse_cpu_memory();
  EXPECT_EQ(at::empty({0}).numel(), 0);
  for (std::int64_t size = 1; size < 40000; size += 777) {
    EXPECT_EQ(at::full({size}, 1.f).sum().item<float>(), static_cast<float>(size));
  }
}

TEST(CpuMemory, threads_may_free_what_others_have_made) {
  reuse_cpu_memory();
  std::vector<at::Tensor> made(64);
  const auto work = [&](std::size_t first) {
    for (int round = 0; round < 50; ++round) {
      for (std::size_t i = first; i < made.size(); i += 4) {
        made[i] = at::full({20000 + 500 * static_cast<std::int64_t>(i)}, static_cast<float>(i));
        EXPECT_EQ(made[i].mean().item<float>(), static_cast<float>(i));
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  const std::uint64_t before = cpu_memory().in_use_bytes;
  made.clear();
  EXPECT_LT(cpu_memory().in_use_bytes, before);
}
