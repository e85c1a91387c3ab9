#include "train/step_graphs.h"

#include "lockstep/error.h"

#ifdef LOCKSTEP_CUDA
#include <map>

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include "optim/weight_copies.h"
#endif

namespace lockstep {

#ifdef LOCKSTEP_CUDA

namespace {

// The next kernels of `second` wait for those of `first`.
void order(const at::cuda::CUDAStream& first, const at::cuda::CUDAStream& second) {
  at::cuda::CUDAEvent event;
  event.record(first);
  event.block(second);
}

}  // namespace

struct StepGraphs::Impl {
  enum class Mode { as_it_is, warm_up, record, replay };

  Options options;
  // A graph cannot be recorded on the default stream; what comes before it must be done on the same
  // one, or its memory would be kept twice. What runs beside it has the lower priority.
  at::cuda::CUDAStream stream = at::cuda::getStreamFromPool(/*isHighPriority=*/true);
  at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
  std::map<std::string, at::cuda::CUDAGraph> graphs;
  KeptCopies copies;
  int warm_ups_left = 0;
  Mode mode = Mode::as_it_is;

  at::cuda::CUDAGraph& record(const std::string& part, const std::function<void()>& work) {
    LOCKSTEP_CHECK(!graphs.contains(part), "a part of a step is recorded twice");
    at::cuda::CUDAGraph& graph = graphs[part];
    const KeptCopies::Scope scope(copies);
    // Other threads load data meanwhile, and look after groups.
    graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    try {
      work();
      graph.capture_end();
      return graph;
    } catch (const Error&) {
      give_up(part);
      throw;
    } catch (const std::exception& error) {
      const std::string why = first_line(error.what());
      give_up(part);
      throw Error(concat("this step cannot be recorded as a CUDA graph: ", why,
                         "; it must not wait for the GPU (item(), nonzero(), a loss on rows that "
                         "are chosen), and shapes must be the same each time"));
    }
  }

  // What waits for the GPU within a recording breaks it, and its end fails, too: then what else
  // that would do is left to us.
  void give_up(const std::string& part) {
    try {
      graphs[part].capture_end();
    } catch (const std::exception&) {
      const c10::DeviceIndex device = stream.device_index();
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool);
      at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device);
      generator.graphsafe_set_state(at::cuda::detail::createCUDAGenerator(device));
    }
    graphs.erase(part);
  }
};

StepGraphs::StepGraphs(const Options& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  impl_->warm_ups_left = options.warm_ups;
}

StepGraphs::~StepGraphs() = default;

void StepGraphs::begin_step(bool usual) {
  using Mode = Impl::Mode;
  Impl& self = *impl_;
  if (!usual) {
    self.mode = Mode::as_it_is;
  } else if (self.warm_ups_left > 0) {
    self.mode = Mode::warm_up;
    --self.warm_ups_left;
  } else if (self.graphs.empty()) {
    self.mode = Mode::record;
    // A graph's memory is its own. What steps needed before would lie idle beside it.
    c10::cuda::CUDACachingAllocator::emptyCache();
  } else {
    self.mode = Mode::replay;
    on_stream([&self] { self.copies.before_replay(); });
  }
}

bool StepGraphs::is_usual() const {
  return impl_->mode != Impl::Mode::as_it_is;
}

bool StepGraphs::is_recorded() const {
  return !impl_->graphs.empty();
}

bool StepGraphs::replays() const {
  return impl_->mode == Impl::Mode::replay;
}

void StepGraphs::run(const std::string& part, const std::function<void()>& work) {
  using Mode = Impl::Mode;
  Impl& self = *impl_;
  on_stream([&] {
    if (self.mode == Mode::as_it_is) return work();
    if (self.mode == Mode::warm_up) {
      const KeptCopies::Scope scope(self.copies);
      return work();
    }
    if (self.mode == Mode::record) return self.record(part, work).replay();
    const auto recorded = self.graphs.find(part);
    LOCKSTEP_CHECK(recorded != self.graphs.end(), "a part of a step was not recorded");
    recorded->second.replay();
  });
}

void StepGraphs::on_stream(const std::function<void()>& work) {
  const at::cuda::CUDAStream current = at::cuda::getCurrentCUDAStream();
  order(current, impl_->stream);
  {
    const c10::cuda::CUDAStreamGuard guard(impl_->stream);
    work();
  }
  order(impl_->stream, current);
}

void StepGraphs::forget() {
  impl_->graphs.clear();
  impl_->copies = {};
  impl_->pool = at::cuda::graph_pool_handle();
  impl_->warm_ups_left = impl_->options.warm_ups;
  impl_->mode = Impl::Mode::as_it_is;
}

#else

struct StepGraphs::Impl {};

StepGraphs::StepGraphs(const Options&) {
  throw Error("a CUDA graph: lockstep was built without CUDA");
}
StepGraphs::~StepGraphs() = default;
void StepGraphs::begin_step(bool) {}
bool StepGraphs::is_usual() const {
  return false;
}
bool StepGraphs::is_recorded() const {
  return false;
}
bool StepGraphs::replays() const {
  return false;
}
void StepGraphs::run(const std::string&, const std::function<void()>&) {}
void StepGraphs::on_stream(const std::function<void()>&) {}
void StepGraphs::forget() {}

#endif

}  // namespace lockstep
