#include "kernels/cross_entropy.h"

#include <cfloat>

#include "kernels/approximate.cuh"
#include "kernels/device.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 512;  // with 1024 it takes a fifth longer
constexpr int kAtOnce = 4;     // loads of a thread on their way

// exp(x - shift). The difference first: with log2(e) in both, large logits would overflow.
__device__ float exp_shifted(float x, float shift) {
  return power_of_two((x - shift) * kLog2E);
}

// The sum of exp(x - top) over what a thread has seen, where `top` is the highest of that: so the
// sum is made while the row is still being read.
struct RunningSum {
  float top = -FLT_MAX;
  float sum = 0.0f;

  __device__ void add(const Pack& pack) {
    __nv_bfloat162 highest = pack.pairs[0];  // bfloat16s are compared as they are
#pragma unroll
    for (int j = 1; j < kPack / 2; ++j) highest = __hmax2(highest, pack.pairs[j]);
    raise(fmaxf(__low2float(highest), __high2float(highest)));
    float values[kPack];
    unpack(pack, values);
#pragma unroll
    for (int j = 0; j < kPack; ++j) sum += exp_shifted(values[j], top);
  }
  __device__ void raise(float to) {
    if (to <= top) return;
    sum *= exp_shifted(top, to);
    top = to;
  }
};

__device__ void write_zeros(Bf16* row, int packs) {
  const float zeros[kPack] = {};
  for (int at = threadIdx.x; at < packs; at += kThreads) {
    store_streaming(row + at * kPack, pack(zeros));
  }
}

// The pack from column `first` on, in which the vocabulary ends.
__device__ Pack without_padding(const Pack& read, int first, int vocabulary) {
  float values[kPack];
  unpack(read, values);
  for (int j = 0; j < kPack; ++j) {
    if (first + j >= vocabulary) values[j] = -INFINITY;
  }
  return pack(values);
}

// A block has a row. Two blocks share a multiprocessor, so that one reads while another computes.
// A row that is not kept on chip is read again, from the cache where it lies there still.
template <bool kKeeps>
__global__ void __launch_bounds__(kThreads, 2) row_kernel(CrossEntropy pass) {
  extern __shared__ int4 kept[];  // the row
  __shared__ float scratch[kThreads / kWarp];
  const int packs = pass.stride / kPack;
  const int full_packs = pass.vocabulary / kPack;  // without padding
  Bf16* row = pass.logits + static_cast<std::int64_t>(blockIdx.x) * pass.stride;
  const std::int64_t label = pass.labels[blockIdx.x];
  if (label == pass.ignored_label || label < 0 || label >= pass.vocabulary) {
    write_zeros(row, packs);
    if (threadIdx.x == 0) pass.losses[blockIdx.x] = label == pass.ignored_label ? 0.0f : NAN;
    return;
  }

  const auto read = [&](int at) {
    return kKeeps ? load_streaming(row + at * kPack) : load(row + at * kPack);
  };
  RunningSum running;
  for (int first = threadIdx.x; first < full_packs; first += kAtOnce * kThreads) {
    Pack values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kThreads;
      if (at < full_packs) values[i] = read(at);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kThreads;
      if (at >= full_packs) break;
      if constexpr (kKeeps) kept[at] = reinterpret_cast<const int4&>(values[i]);
      running.add(values[i]);
    }
  }
  const bool has_edge = full_packs < packs && threadIdx.x == full_packs % kThreads;
  if (has_edge) {
    // The pack in which the vocabulary ends, and what follows, which is all padding.
    const Pack masked = without_padding(read(full_packs), full_packs * kPack, pass.vocabulary);
    if constexpr (kKeeps) kept[full_packs] = reinterpret_cast<const int4&>(masked);
    running.add(masked);
  }
  const float top = block_max(running.top, scratch);
  running.raise(top);
  const float sum = block_sum(running.sum, scratch);
  const int used_packs = (pass.vocabulary + kPack - 1) / kPack;
  const float factor = pass.scale / sum;

  for (int at = threadIdx.x; at < packs; at += kThreads) {
    float values[kPack] = {};
    if (at < used_packs) {
      if constexpr (kKeeps) {
        unpack(reinterpret_cast<const Pack&>(kept[at]), values);
      } else {
        unpack(at < full_packs ? read(at) : without_padding(read(at), at * kPack, pass.vocabulary),
               values);
      }
#pragma unroll
      for (int j = 0; j < kPack; ++j) values[j] = exp_shifted(values[j], top) * factor;
      if (label / kPack == at) {
        const Bf16* logits = kKeeps ? reinterpret_cast<const Bf16*>(kept) : row;
        values[label % kPack] -= pass.scale;
        pass.losses[blockIdx.x] = logf(sum) - (to_float(logits[label]) - top);
      }
    }
    store_streaming(row + at * kPack, pack(values));
  }
}

// The widest row that fits into the shared memory of the current device.
int max_kept_stride() {
  int device = 0;
  int bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return (bytes - 1024) / static_cast<int>(sizeof(Pack)) * kPack;
}

}  // namespace

void cross_entropy(const CrossEntropy& pass, Stream stream) {
  require(pass.rows > 0, "cross_entropy", "at least one row");
  require(pass.vocabulary > 0 && pass.vocabulary <= pass.stride && pass.stride % kPack == 0,
          "cross_entropy", "a stride that is a multiple of 8 and not below the vocabulary");
  const int max_stride = max_kept_stride();
  if (pass.stride > max_stride) {
    row_kernel<false><<<pass.rows, kThreads, 0, stream>>>(pass);
  } else {
    const cudaError_t allowed =
        cudaFuncSetAttribute(row_kernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             max_stride * static_cast<int>(sizeof(Bf16)));
    require(allowed == cudaSuccess, "cross_entropy", "more shared memory than the device has");
    row_kernel<true><<<pass.rows, kThreads, sizeof(Bf16) * pass.stride, stream>>>(pass);
  }
  check_launch("cross_entropy");
}

}  // namespace lockstep::kernels
