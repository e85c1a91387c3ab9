#pragma once

// Runs kernels on a CPU, Hopper's too: their sources, compiled by the host's compiler with the
// folder of this file as the first include folder, so that where there are headers in kernels/
// beside it, those are taken. What may happen in any order on the device happens in an order drawn
// from a seed.
//
// What it does not see: plain reads and writes that race within one order, if no schedule tried
// shows them; plain writes to shared memory that were not published to copies (those of
// store_matrices() it does see); registers that are changed while a product may still read them as
// its first operand; what streams do to each other; how long anything takes.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <stdexcept>

#include "kernels/stream.h"
#include "tests/kernels/on_cpu/schedule.h"

namespace lockstep::kernels::on_cpu {

/// A kernel broke one of the device's rules, or all of its threads wait.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Launch {
  dim3 blocks = 1;
  int cluster = 1;       // blocks of one, neighbours along x
  int threads = 128;     // of a block, whole warps
  int shared_bytes = 0;  // of a block
};

/// Calls `kernel` as every thread of every block. All threads of a cluster take turns; clusters run
/// one after the other, so none may wait for another.
///
/// Throws Failure. Then threads are given up where they are, without destructors.
void launch(const Launch& launch, const Schedule& schedule, const std::function<void()>& kernel);

/// How copies see a matrix of bfloat16 in tiles of 64 columns, swizzled. `row_stride` is in values.
CUtensorMap map_of(const Bf16* matrix, std::int64_t rows, std::int64_t columns,
                   std::int64_t row_stride, int tile_rows);

}  // namespace lockstep::kernels::on_cpu
