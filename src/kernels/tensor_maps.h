#pragma once

#include <cuda.h>

#include "kernels/stream.h"

namespace lockstep::kernels {

/// Whether the current device has Hopper's tiles (hopper.cuh), they were compiled for it, and the
/// driver describes matrices to its copy engine.
bool has_tiles();

/// How the copy engine sees a matrix of bfloat16 [rows, columns]: in tiles of 64 columns.
CUtensorMap tile_map(const Bf16* matrix, std::int64_t rows, std::int64_t columns, int tile_rows);

}  // namespace lockstep::kernels
