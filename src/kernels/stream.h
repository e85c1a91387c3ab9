#pragma once

#include <cstdint>

struct CUstream_st;

namespace lockstep::kernels {

/// CUDA's cudaStream_t, without its headers.
using Stream = CUstream_st*;

/// The bits of a bfloat16. Kernels take pointers to these, so that callers need no CUDA header.
using Bf16 = std::uint16_t;

}  // namespace lockstep::kernels
