#include "kernels/launch_check.h"

#include <stdexcept>
#include <string>

#include "kernels/device.cuh"

namespace lockstep::kernels {

void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("the CUDA kernel ") + kernel +
                             " could not be started: " + cudaGetErrorString(error));
  }
}

void require(bool condition, const char* kernel, const char* words) {
  if (!condition) {
    throw std::invalid_argument(std::string("the CUDA kernel ") + kernel + " needs " + words);
  }
}

int multiprocessors() {
  int device = 0;
  int count = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

}  // namespace lockstep::kernels
