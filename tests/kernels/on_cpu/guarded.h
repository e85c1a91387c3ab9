#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace lockstep::testing {

/// A tensor of NaNs that ends where memory ends, as near as the 16 bytes allow to which kernels may
/// expect it to be aligned: who reads or writes on is stopped (on_cpu::MemoryWatch). Of what lies
/// beside it within a page, the running test fails, when the tensor goes, if a kernel wrote there.
inline at::Tensor guarded(at::IntArrayRef sizes, at::ScalarType type) {
  constexpr std::size_t kAlignment = 16, kGap = 1 << 20;
  constexpr int kNothing = 0xff;  // a NaN's bytes
  const auto up = [](std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; };
  const auto count = static_cast<std::size_t>(c10::multiply_integers(sizes));
  const std::size_t bytes = count * c10::elementSize(type);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t room = up(std::max(bytes, kAlignment), page);
  void* const all =
      mmap(nullptr, room + 2 * kGap, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) throw std::bad_alloc();
  auto* const first = static_cast<unsigned char*>(all) + kGap;
  mprotect(first, room, PROT_READ | PROT_WRITE);
  std::memset(first, kNothing, room);
  unsigned char* const begin = first + room - up(bytes, kAlignment);
  const auto release = [=](void*) {
    const auto is_written = [](unsigned char byte) { return byte != kNothing; };
    if (std::any_of(first, begin, is_written) ||
        std::any_of(begin + bytes, first + room, is_written)) {
      ADD_FAILURE() << "a kernel wrote beside a tensor of " << count << " values";
    }
    munmap(all, room + 2 * kGap);
  };
  return torch::from_blob(begin, sizes, release, at::TensorOptions().dtype(type));
}

}  // namespace lockstep::testing
