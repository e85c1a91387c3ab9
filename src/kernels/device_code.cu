#include "kernels/device_code.h"

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>

#include <cuda_runtime.h>

namespace lockstep::kernels {
namespace {

// How many threads a block may have is told of a function that is never started, and so is what the
// function was compiled for.
constexpr int kWithHopper = 64;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int kThreads = kWithHopper;
#else
constexpr int kThreads = kWithHopper / 2;
#endif

__global__ void __launch_bounds__(kThreads) probe() {}

enum class Code { not_asked, none, plain, hopper };

bool means_no_code(cudaError_t error) {
  switch (error) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
      return true;
    default:
      return false;
  }
}

Code ask() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, probe);
  if (error == cudaSuccess) {
    return attributes.maxThreadsPerBlock == kWithHopper ? Code::hopper : Code::plain;
  }
  if (!means_no_code(error)) {
    throw std::runtime_error(std::string("the GPU does not say which kernels it has: ") +
                             cudaGetErrorString(error));
  }
  cudaGetLastError();  // or the next launch would be taken for one that failed
  return Code::none;
}

Code code_of_device() {
  constexpr int kDevices = 64;
  static std::array<std::atomic<Code>, kDevices> known{};
  int device = 0;
  cudaGetDevice(&device);
  if (device >= kDevices) return ask();
  std::atomic<Code>& code = known[static_cast<std::size_t>(device)];
  if (code == Code::not_asked) code = ask();
  return code;
}

}  // namespace

bool has_device_code() {
  return code_of_device() != Code::none;
}

bool has_hopper_code() {
  return code_of_device() == Code::hopper;
}

}  // namespace lockstep::kernels
