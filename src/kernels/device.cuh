#pragma once

// What all kernels share: bfloat16 in vectors of 16 bytes, and sums over a warp or a block.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/launch_check.h"
#include "kernels/stream.h"

namespace lockstep::kernels {

inline constexpr int kWarp = 32;
inline constexpr int kPack = 8;  // bfloat16s in 16 bytes
inline constexpr float kLog2E = 1.4426950408889634f;

/// Eight bfloat16s, as one load or store.
struct alignas(16) Pack {
  __nv_bfloat162 pairs[kPack / 2];
};

__device__ inline void unpack(const Pack& pack, float (&values)[kPack]) {
#pragma unroll
  for (int i = 0; i < kPack / 2; ++i) {
    const float2 pair = __bfloat1622float2(pack.pairs[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}

__device__ inline Pack pack(const float (&values)[kPack]) {
  Pack result;
#pragma unroll
  for (int i = 0; i < kPack / 2; ++i) {
    result.pairs[i] = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
  }
  return result;
}

__device__ inline Pack load(const Bf16* at) {
  return *reinterpret_cast<const Pack*>(at);
}
__device__ inline void store(Bf16* at, const Pack& pack) {
  *reinterpret_cast<Pack*>(at) = pack;
}

/// For what is read once: it does not push out of the cache what others come back to.
__device__ inline Pack load_streaming(const Bf16* at) {
  const int4 bits = __ldcs(reinterpret_cast<const int4*>(at));
  return reinterpret_cast<const Pack&>(bits);
}
__device__ inline void store_streaming(Bf16* at, const Pack& pack) {
  __stcs(reinterpret_cast<int4*>(at), reinterpret_cast<const int4&>(pack));
}

/// Eight floats, at a multiple of 16 bytes.
__device__ inline void load_floats(const float* at, float (&values)[kPack]) {
  const float4 low = *reinterpret_cast<const float4*>(at);
  const float4 high = *reinterpret_cast<const float4*>(at + 4);
  values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
  values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}
__device__ inline void store_floats(float* at, const float (&values)[kPack]) {
  *reinterpret_cast<float4*>(at) = make_float4(values[0], values[1], values[2], values[3]);
  *reinterpret_cast<float4*>(at + 4) = make_float4(values[4], values[5], values[6], values[7]);
}

__device__ inline float to_float(Bf16 bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}
__device__ inline Bf16 to_bf16(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

/// The sum of a value over the warp, for every lane.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

__device__ inline float warp_max(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

/// The same over a block of up to 32 warps; `scratch` has room for one value per warp. The order of
/// the sum depends on the block's size only.
__device__ inline float block_sum(float value, float* scratch) {
  value = warp_sum(value);
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  __syncthreads();  // who still reads the last result
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}

__device__ inline float block_max(float value, float* scratch) {
  value = warp_max(value);
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  __syncthreads();
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return warp_max(lane < warps ? scratch[lane] : -INFINITY);
}

/// Multiprocessors of the current device.
int multiprocessors();

}  // namespace lockstep::kernels
