#pragma once

#include <optional>
#include <utility>

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace lockstep {

/// A stream for work whose results are not needed soon: it fills what the kernels of the current
/// stream leave free, above all where the last of a kernel's blocks keep few multiprocessors busy.
///
/// Work begins after what was launched on the current stream before it; join() makes the current
/// stream wait for all of it. What the work reads must live until then, because memory that is
/// given back belongs to the current stream's next kernel at once. What the work allocates comes
/// from the side's own memory, so that it may be given back at any time: whatever is put there next
/// begins after the current stream, too. Both hold in a graph that is recorded.
///
/// Thread rule: one thread at a time.
class SideStream {
 public:
  template <typename Work>
  auto run(Work&& work) {
    if (!stream_) stream_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/false);
    is_busy_ = true;
    begin_.record();
    begin_.block(*stream_);
    const c10::cuda::CUDAStreamGuard guard(*stream_);
    return std::forward<Work>(work)();
  }

  void join() {
    if (!std::exchange(is_busy_, false)) return;
    end_.record(*stream_);
    end_.block(c10::cuda::getCurrentCUDAStream());
  }

 private:
  std::optional<c10::cuda::CUDAStream> stream_;  // of the device of the first work
  bool is_busy_ = false;                         // since the last join()
  at::cuda::CUDAEvent begin_, end_;
};

}  // namespace lockstep
