#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace lockstep::testing {

/// A tensor of NaNs between two margins. When it goes, the running test fails if a kernel wrote to
/// them.
inline at::Tensor guarded(at::IntArrayRef sizes, at::ScalarType type) {
  constexpr std::size_t kMargin = 4096;
  constexpr unsigned char kNothing = 0xff;  // a NaN's bytes
  const auto count = static_cast<std::size_t>(c10::multiply_integers(sizes));
  const std::size_t bytes = count * c10::elementSize(type);
  const std::size_t room = kMargin + (bytes / kMargin + 2) * kMargin;
  auto* const memory = static_cast<unsigned char*>(std::aligned_alloc(kMargin, room));
  std::memset(memory, kNothing, room);
  const auto check = [=](void*) {
    const auto is_written = [](unsigned char byte) { return byte != kNothing; };
    if (std::any_of(memory, memory + kMargin, is_written) ||
        std::any_of(memory + kMargin + bytes, memory + room, is_written)) {
      ADD_FAILURE() << "a kernel wrote outside of a tensor of " << count << " values";
    }
    std::free(memory);
  };
  return torch::from_blob(memory + kMargin, sizes, check, at::TensorOptions().dtype(type));
}

}  // namespace lockstep::testing
