#include "tests/kernels/on_cpu/host_words.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

#include "tests/kernels/on_cpu/launch.h"

namespace {

using namespace lockstep::kernels::on_cpu;

constexpr int kThreads = 64;

std::string failure_of(const std::function<void()>& kernel, std::size_t shared_bytes = 0) {
  try {
    start(1, kThreads, shared_bytes, nullptr, kernel);
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

TEST(HostWords, ABlockSharesItsVariablesAndNoOtherDoes) {
  float seen[3][kThreads] = {};
  start(3, kThreads, 0, nullptr, [&] {
    auto& values = shared<float[kThreads]>([] {});
    auto& other = shared<float>([] {});
    if (!std::isnan(other)) seen[blockIdx.x][threadIdx.x] = NAN;
    values[threadIdx.x] = static_cast<float>(threadIdx.x);
    __syncthreads();
    seen[blockIdx.x][threadIdx.x] += values[kThreads - 1 - threadIdx.x];
  });
  for (const auto& block : seen) {
    for (int i = 0; i < kThreads; ++i) EXPECT_EQ(block[i], kThreads - 1 - i);
  }
}

TEST(HostWords, WritesPastTheEndOfSharedMemoryAreSeen) {
  EXPECT_NE(failure_of([] {
              auto& values = shared<float[kThreads]>([] {});
              (&values[0])[threadIdx.x + 1] = 0.0f;
            }).find("past the end of 256 bytes"),
            std::string::npos);
  EXPECT_NE(
      failure_of([] { dynamic_shared<float>()[threadIdx.x + 1] = 0.0f; }, kThreads * sizeof(float))
          .find("past the end of 256 bytes"),
      std::string::npos);
}

TEST(HostWords, WhoTouchesMemoryThatIsNotThereIsNamed) {
  const std::string words = failure_of([] {
    if (threadIdx.x == 5) *reinterpret_cast<volatile int*>(std::uintptr_t{16}) = 1;
    __syncthreads();
  });
  EXPECT_NE(words.find("thread 5: touches memory that is not the kernel's, at 0x10"),
            std::string::npos)
      << words;
  EXPECT_EQ(failure_of([] { __syncthreads(); }), "");
}

TEST(HostWords, WhatADeviceWouldNotStartIsAnError) {
  int calls = 0;
  const auto error_of = [&](dim3 blocks, int threads, std::size_t shared_bytes) {
    start(blocks, threads, shared_bytes, nullptr, [&] { ++calls; });
    return cudaGetLastError();
  };
  EXPECT_EQ(error_of(0, kThreads, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of({1, 70000}, kThreads, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(1, 2048, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(error_of(1, kThreads, 49 << 10), cudaErrorInvalidConfiguration);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(error_of(1, kThreads, 0), cudaSuccess);
  EXPECT_EQ(calls, kThreads);
}

}  // namespace
