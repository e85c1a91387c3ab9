#include "train/graphed_step.h"

#include <utility>

#include "lockstep/error.h"
#include "optim/weight_copies.h"

#ifdef LOCKSTEP_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace lockstep {

#ifdef LOCKSTEP_CUDA

struct GraphedStep::Impl {
  std::function<void()> work;
  int warm_ups_left = 0;
  // A graph cannot be recorded on the default stream; what comes before it must be done on the same
  // one, or its memory would be kept twice. What runs beside it has the lower priority.
  at::cuda::CUDAStream stream = at::cuda::getStreamFromPool(/*isHighPriority=*/true);
  at::cuda::CUDAGraph graph;
  bool recorded = false;
  KeptCopies copies;

  void record() {
    const KeptCopies::Scope scope(copies);
    graph.capture_begin();
    try {
      work();
    } catch (...) {
      graph.capture_end();
      throw;
    }
    graph.capture_end();
    recorded = true;
    work = nullptr;
  }

  // The next kernels of `second` wait for those of `first`.
  static void order(const at::cuda::CUDAStream& first, const at::cuda::CUDAStream& second) {
    at::cuda::CUDAEvent event;
    event.record(first);
    event.block(second);
  }
};

GraphedStep::GraphedStep(std::function<void()> work, GraphedStepOptions options)
    : impl_(std::make_unique<Impl>()) {
  if (options.warm_ups < 1) {
    throw InvalidArgument(
        concat("GraphedStep: warm_ups is ", options.warm_ups, "; it must be at least 1"));
  }
  impl_->work = std::move(work);
  impl_->warm_ups_left = options.warm_ups;
}

void GraphedStep::run() {
  const at::cuda::CUDAStream current = at::cuda::getCurrentCUDAStream();
  Impl::order(current, impl_->stream);
  {
    const c10::cuda::CUDAStreamGuard guard(impl_->stream);
    if (impl_->warm_ups_left > 0) {
      const KeptCopies::Scope scope(impl_->copies);
      impl_->work();
      --impl_->warm_ups_left;
    } else {
      if (!impl_->recorded) impl_->record();
      impl_->copies.before_replay();
      impl_->graph.replay();
    }
  }
  Impl::order(impl_->stream, current);
}

bool GraphedStep::is_recorded() const {
  return impl_->recorded;
}

#else

struct GraphedStep::Impl {};

GraphedStep::GraphedStep(std::function<void()>, GraphedStepOptions) {
  throw Error("GraphedStep: lockstep was built without CUDA");
}
void GraphedStep::run() {}
bool GraphedStep::is_recorded() const {
  return false;
}

#endif

GraphedStep::~GraphedStep() = default;

}  // namespace lockstep
