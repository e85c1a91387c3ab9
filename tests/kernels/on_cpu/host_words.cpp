#include "tests/kernels/on_cpu/host_words.h"

#include <utility>

#include "tests/kernels/on_cpu/launch.h"
#include "tests/kernels/on_cpu/machine.h"
#include "tests/kernels/on_cpu/memory_watch.h"

namespace lockstep::kernels::on_cpu {
namespace {

constexpr int kMultiprocessors = 2;  // few, so that a block has several turns
constexpr int kSharedUnasked = 48 << 10;
constexpr unsigned kMostBlocksAlongY = 65535;  // and z

std::size_t most_shared = kSharedUnasked;
cudaError_t last_error = cudaSuccess;
std::uint64_t launches = 0;

bool would_start(dim3 blocks, int threads, std::size_t shared_bytes) {
  return blocks.x > 0 && blocks.y > 0 && blocks.z > 0 && blocks.y <= kMostBlocksAlongY &&
         blocks.z <= kMostBlocksAlongY && threads > 0 && threads <= 1024 &&
         shared_bytes <= most_shared;
}

}  // namespace

void start(dim3 blocks, int threads, std::size_t shared_bytes, Stream,
           const std::function<void()>& kernel) {
  if (!would_start(blocks, threads, shared_bytes)) {
    last_error = cudaErrorInvalidConfiguration;
    return;
  }
  const MemoryWatch watch;
  launch({.blocks = blocks, .threads = threads, .shared_bytes = static_cast<int>(shared_bytes)},
         {.seed = launches++}, kernel);
}

void* shared_at(const void* key, std::size_t bytes) {
  return machine().block().variable(key, bytes);
}
void* dynamic_shared() {
  return machine().block().memory();
}

cudaError_t allow_shared(int bytes) {
  if (bytes > static_cast<int>(kMostShared)) return cudaErrorInvalidValue;
  most_shared = static_cast<std::size_t>(bytes);
  return cudaSuccess;
}

}  // namespace lockstep::kernels::on_cpu

using namespace lockstep::kernels::on_cpu;

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t) {
  return "the device would refuse it";
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(kMostShared);
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}
