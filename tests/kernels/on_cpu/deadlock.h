#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/on_cpu/block.h"

namespace lockstep::kernels::on_cpu {

/// What every warp waits for.
std::string deadlock_report(const std::deque<Fiber>& fibers,
                            const std::vector<std::unique_ptr<Block>>& blocks);

}  // namespace lockstep::kernels::on_cpu
