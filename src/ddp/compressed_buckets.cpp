#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "comm/tensor_future.h"
#include "ddp/compression_impl.h"
#include "ddp/engine.h"

// How buckets of gradients come to a GradientCompression.
namespace lockstep {
namespace {

/// What is left of a GradBucket after the call of its hook, which may return before the work is
/// done.
struct KeptBucket {
  at::Tensor buffer;
  std::vector<CompressedPiece> pieces;
  bool last = false;
};

KeptBucket keep_bucket(const c10d::GradBucket& bucket, const GradientCompression::Impl& memory) {
  KeptBucket kept{.buffer = bucket.getBuffer(), .pieces = {}, .last = bucket.isLast()};
  if (kept.buffer.is_sparse()) return kept;
  const std::vector<at::Tensor> gradients = bucket.getGradients();
  const std::vector<at::Tensor> parameters = bucket.getParameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = memory.by_tensor.find(parameters[i].unsafeGetTensorImpl());
    if (found == memory.by_tensor.end()) {
      throw InvalidArgument(
          "register_comm_hook: the GradientCompression was made for another module");
    }
    kept.pieces.push_back({.index = found->second, .gradient = gradients[i]});
  }
  return kept;
}

}  // namespace

// The reductions of a bucket follow one another, and those of the next bucket follow them, in the
// same order on every rank. Where a reduction occupies a thread they have one of their own, and
// backward goes on meanwhile. On a GPU they are put in line from here. Nor may they run beside
// c10d's own all-reduce of who has used which parameter, which has no place in that order.
c10::intrusive_ptr<c10::ivalue::Future> DataParallelEngine::Impl::run_compression(
    c10d::GradBucket& bucket) {
  auto future = make_tensor_future(bucket.getBuffer());
  const auto work = [this, future, kept = keep_bucket(bucket, compression->impl())] {
    try {
      const at::NoGradGuard no_grad;
      at::Tensor result = kept.buffer;
      if (kept.buffer.is_sparse()) {
        result = sparse_mean(kept.buffer);
      } else {
        const CompressionLink link{.mean = [this](const at::Tensor& tensor) { mean_now(tensor); },
                                   .group = handle};
        compression->impl().reduce(kept.buffer, kept.pieces, kept.last, link);
      }
      if (kept.last && !compression->impl().transactional) compression->commit();
      future->markCompleted(result);
    } catch (...) {
      future->setErrorIfNeeded(std::current_exception());
    }
  };
  const bool shares_group = options.find_unused_parameters && !options.static_graph;
  if (ordered && !shares_group) {
    if (!hook_queue) hook_queue = std::make_unique<SerialQueue>();
    hook_queue->post(work);
  } else {
    work();
  }
  return future;
}

void DataParallelEngine::register_comm_hook(std::shared_ptr<GradientCompression> compression) {
  if (!compression) throw InvalidArgument("register_comm_hook: the GradientCompression is null");
  if (impl_->hook_chosen) throw InvalidArgument("register_comm_hook: a hook is already registered");
  if (!impl_->all_ranks_are_lockstep()) {
    throw InvalidArgument(
        "register_comm_hook: compression needs lockstep on every rank; a rank of another language "
        "knows nothing of it");
  }
  impl_->register_hook_with_reducer();
  impl_->logger->set_comm_hook(
      std::holds_alternative<PowerSGDOptions>(compression->options()) ? "powersgd" : "int8");
  impl_->compression = std::move(compression);
  impl_->hook_chosen = true;
}

}  // namespace lockstep
