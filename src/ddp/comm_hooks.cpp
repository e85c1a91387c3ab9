#include <torch/csrc/distributed/c10d/comm.hpp>

#include "comm/tensor_future.h"
#include "ddp/engine.h"
#include "lockstep/comm_hook.h"

namespace lockstep {
namespace {

using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

/// Calls back into the engine, which knows how buckets are reduced. The reducer owns this object
/// and the engine owns the reducer, so the pointer is valid as long as it is used.
class EngineHook : public c10d::CommHookInterface {
 public:
  explicit EngineHook(DataParallelEngine::Impl& engine) : engine_(engine) {}

  FuturePtr runHook(c10d::GradBucket& bucket) override { return engine_.run_hook(bucket); }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  DataParallelEngine::Impl& engine_;
};

FuturePtr completed(const at::Tensor& tensor) {
  auto future = make_tensor_future(tensor);
  future->markCompleted(tensor);
  return future;
}

// Divides first, as Python's hooks do, so that 16-bit sums do not overflow.
FuturePtr native_mean(GroupImpl& group, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor.div_(group.size())};
  return group.group->allreduce(tensors)->getFuture()->then(
      [](c10::ivalue::Future& done) -> c10::IValue {
        return c10d::detail::parseCppCommHookResult(done.value());
      },
      c10::TensorType::get());
}

// The compressed result goes back into the bucket, which saves a copy of its size.
FuturePtr decompressed(const FuturePtr& future, const at::Tensor& into) {
  return future->then(
      [into](c10::ivalue::Future& done) -> c10::IValue {
        into.copy_(done.value().toTensor());
        return into;
      },
      c10::TensorType::get());
}

const char* name_of(CommHook hook) {
  switch (hook) {
    case CommHook::allreduce:
      return "allreduce";
    case CommHook::fp16_compress:
      return "fp16_compress";
    case CommHook::bf16_compress:
      return "bf16_compress";
  }
  throw InvalidArgument(concat("CommHook ", static_cast<int>(hook), " does not exist"));
}

}  // namespace

void DataParallelEngine::Impl::register_hook_with_reducer() {
  if (hook_registered) return;
  reducer->register_comm_hook(std::make_unique<EngineHook>(*this));
  hook_registered = true;
}

FuturePtr DataParallelEngine::Impl::run_hook(c10d::GradBucket& bucket) {
  if (bucket.isLast()) last_bucket_at = std::chrono::steady_clock::now();
  if (user_hook) return user_hook(bucket);
  if (compression) return run_compression(bucket);
  const at::Tensor& buffer = bucket.getBuffer();
  if (buffer.is_sparse()) {
    return ordered ? completed(ordered->sparse_mean(buffer)) : native_mean(*group, buffer);
  }
  const auto mean = [&](const at::Tensor& tensor) {
    if (!ordered) return native_mean(*group, tensor);
    // After the last bucket there is nothing left to compute.
    return ordered->mean(tensor, bucket.isLast() ? OrderedReduction::Urgency::wait_now
                                                 : OrderedReduction::Urgency::overlap);
  };
  switch (hook) {
    case CommHook::fp16_compress:
      return decompressed(mean(buffer.to(at::kHalf)), buffer);
    case CommHook::bf16_compress:
      return decompressed(mean(buffer.to(at::kBFloat16)), buffer);
    default:
      return mean(buffer);
  }
}

// When it returns, the mean is there; on a GPU, the current stream is ordered after it.
void DataParallelEngine::Impl::mean_now(const at::Tensor& tensor) {
  if (ordered) {
    ordered->mean(tensor, OrderedReduction::Urgency::wait_now)->waitAndThrow();
  } else {
    native_mean(*group, tensor)->waitAndThrow();
  }
}

at::Tensor DataParallelEngine::Impl::sparse_mean(const at::Tensor& tensor) {
  if (ordered) return ordered->sparse_mean(tensor);
  const FuturePtr future = native_mean(*group, tensor);
  future->waitAndThrow();
  return future->value().toTensor();
}

void DataParallelEngine::register_comm_hook(CommHook hook) {
  const char* name = name_of(hook);
  if (impl_->hook_chosen) throw InvalidArgument("register_comm_hook: a hook is already registered");
  impl_->register_hook_with_reducer();
  impl_->hook = hook;
  impl_->hook_chosen = true;
  impl_->logger->set_comm_hook(name);
}

void DataParallelEngine::register_comm_hook(CommHookFunction hook) {
  if (!hook) throw InvalidArgument("register_comm_hook: the function is empty");
  if (impl_->hook_chosen) throw InvalidArgument("register_comm_hook: a hook is already registered");
  impl_->register_hook_with_reducer();
  impl_->user_hook = std::move(hook);
  impl_->hook_chosen = true;
  impl_->logger->set_comm_hook("user");
}

}  // namespace lockstep
