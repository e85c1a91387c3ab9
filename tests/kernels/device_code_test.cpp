#include "kernels/device_code.h"

#include <ATen/cuda/CUDAContext.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

using namespace lockstep;

// Where they were not found, the tests of the kernels themselves would be skipped, and a model
// would compute otherwise.
TEST(DeviceCode, IsFoundOnTheDeviceThatItWasCompiledFor) {
  EXPECT_TRUE(kernels::has_device_code());
  EXPECT_EQ(kernels::has_hopper_code(), at::cuda::getCurrentDeviceProperties()->major == 9);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}
