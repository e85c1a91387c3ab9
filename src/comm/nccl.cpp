#include "comm/nccl.h"

#ifdef LOCKSTEP_CUDA
#include <torch/csrc/api/include/torch/cuda.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include "lockstep/error.h"

namespace lockstep {

#ifdef LOCKSTEP_CUDA

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store,
                                            const NcclOptions& options) {
  if (torch::cuda::device_count() == 0) {
    throw InvalidArgument("backend nccl: this process sees no CUDA device; use gloo");
  }
  // What others wait for goes before what this rank computes beside it; in a CUDA graph, which is
  // recorded on a stream of this priority, not behind it.
  auto native = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  native->timeout = options.timeout;
  native->group_name = options.group_name;
  native->global_ranks_in_group.assign(options.global_ranks.begin(), options.global_ranks.end());
  auto backend =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(store, options.rank, options.size, native);
  backend->setSequenceNumberForGroup();
  return backend;
}

bool built_with_nccl() {
  return true;
}

#else

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>&,
                                            const NcclOptions&) {
  throw InvalidArgument(
      "backend nccl: this build has no CUDA; configure with -DLOCKSTEP_CUDA=ON (preset cuda)");
}

bool built_with_nccl() {
  return false;
}

#endif

}  // namespace lockstep
