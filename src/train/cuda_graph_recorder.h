#pragma once

#include <memory>

#include "train/graph_recorder.h"

namespace lockstep {

/// Throws Error where lockstep was built without CUDA.
std::unique_ptr<GraphRecorder> make_cuda_graph_recorder();

}  // namespace lockstep
