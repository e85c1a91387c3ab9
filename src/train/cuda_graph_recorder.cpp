#include "train/cuda_graph_recorder.h"

#include "lockstep/error.h"

#ifdef LOCKSTEP_CUDA
#include <map>
#include <thread>

#include <ATen/core/CachingHostAllocator.h>
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

template <typename Call>
void ignoring_failures(Call call) {
  try {
    call();
  } catch (const std::exception&) {
  }
}

// Page-locked memory has pools of graphs in newer releases of torch.
template <typename Allocator>
void leave_pool(Allocator& allocator, at::cuda::MempoolId_t pool) {
  if constexpr (requires {
                  allocator.end_allocate_to_pool(pool);
                  allocator.release_pool(pool);
                }) {
    allocator.end_allocate_to_pool(pool);
    allocator.release_pool(pool);
  }
}

class CudaGraphRecorder : public GraphRecorder {
 public:
  void on_stream(const PartOfStep& work) override {
    const at::cuda::CUDAStream current = at::cuda::getCurrentCUDAStream();
    order(current, stream_);
    try {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      work();
    } catch (...) {
      ignoring_failures([&] { order(stream_, current); });
      throw;
    }
    order(stream_, current);
  }

  void warm_up(const PartOfStep& work) override {
    const KeptCopies::Scope scope(copies_);
    on_stream(work);
  }

  // A graph's memory is its own. What steps needed before would lie idle beside it.
  void begin_recording() override { c10::cuda::CUDACachingAllocator::emptyCache(); }

  void record(const std::string& part, const PartOfStep& work) override {
    on_stream([&] {
      capture(part, work);
      graphs_.at(part).replay();
    });
  }

  bool has(const std::string& part) const override { return graphs_.contains(part); }

  void begin_replays() override {
    on_stream([this] { copies_.before_replay(); });
  }

  void replay(const std::string& part, const PartOfStep&) override {
    on_stream([&] { graphs_.at(part).replay(); });
  }

  bool await(std::chrono::nanoseconds limit) override {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    at::cuda::CUDAEvent ended;
    ended.record(stream_);
    while (!ended.query()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();  // as long as a step; sleeping would be late
    }
    return true;
  }

  void forget() override {
    graphs_.clear();
    copies_ = {};
    pool_ = at::cuda::graph_pool_handle();
  }

 private:
  void capture(const std::string& part, const PartOfStep& work) {
    LOCKSTEP_CHECK(!has(part), "a part of a step is recorded twice");
    at::cuda::CUDAGraph& graph = graphs_[part];
    const KeptCopies::Scope scope(copies_);
    // Other threads load data meanwhile, and look after groups.
    try {
      graph.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
      work();
      graph.capture_end();
    } catch (const Error&) {
      give_up(part);
      throw;
    } catch (const c10::OutOfMemoryError&) {
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
  // that would do is left to us, as far as this torch has not done it.
  void give_up(const std::string& part) {
    bool ended = false;
    ignoring_failures([&] {
      graphs_.at(part).capture_end();
      ended = true;
    });
    if (!ended) {
      const c10::DeviceIndex device = stream_.device_index();
      ignoring_failures([&] {
        c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool_);
        c10::cuda::CUDACachingAllocator::releasePool(device, pool_);
      });
      ignoring_failures([&] { leave_pool(*at::getHostAllocator(at::kCUDA), pool_); });
      at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device);
      at::Generator again = at::cuda::detail::createCUDAGenerator(device);
      again.set_current_seed(generator.current_seed());
      generator.graphsafe_set_state(again);
    }
    graphs_.erase(part);
  }

  // A graph cannot be recorded on the default stream; what comes before it must be done on the same
  // one, or its memory would be kept twice. What runs beside it has the lower priority.
  at::cuda::CUDAStream stream_ = at::cuda::getStreamFromPool(/*isHighPriority=*/true);
  at::cuda::MempoolId_t pool_ = at::cuda::graph_pool_handle();
  std::map<std::string, at::cuda::CUDAGraph> graphs_;
  KeptCopies copies_;
};

}  // namespace

std::unique_ptr<GraphRecorder> make_cuda_graph_recorder() {
  return std::make_unique<CudaGraphRecorder>();
}

#else

std::unique_ptr<GraphRecorder> make_cuda_graph_recorder() {
  throw Error("a CUDA graph: lockstep was built without CUDA");
}

#endif

}  // namespace lockstep
