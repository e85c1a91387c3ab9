#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "ddp/engine.h"

// Uneven inputs: a rank that has run out of input mirrors the collectives of those that go on. The
// sequence of collectives is that of Python's Join, so that both languages can share a job.
namespace lockstep {
namespace {

c10::intrusive_ptr<c10d::Work> start_sum(GroupImpl& group, at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  return group.group->allreduce(tensors);
}

double sum_over_ranks(GroupImpl& group, at::Tensor tensor) {
  start_sum(group, tensor)->wait();
  return tensor.item<double>();
}

}  // namespace

// All ranks call it; the largest rank that is a candidate wins.
int DataParallelEngine::Impl::agree_on_rank(bool candidate) {
  std::vector<at::Tensor> tensors{at::full({1}, candidate ? group->rank : -1,
                                           at::TensorOptions().dtype(at::kLong).device(device()))};
  c10d::AllreduceOptions largest;
  largest.reduceOp = c10d::ReduceOp::MAX;
  group->group->allreduce(tensors, largest)->wait();
  const int rank = static_cast<int>(tensors[0].item<std::int64_t>());
  LOCKSTEP_CHECK(rank >= 0, "no rank was a candidate");
  return rank;
}

// At the beginning of a forward: this rank still has input.
void DataParallelEngine::Impl::announce_presence() {
  const auto on_device = at::TensorOptions().device(device());
  at::Tensor present = at::ones({1}, on_device);
  auto work = start_sum(*group, present);
  if (joining->throw_on_early_termination &&
      sum_over_ranks(*group, at::zeros({1}, on_device)) > 0) {
    throw Error(concat("rank ", group->global_ranks[group->rank],
                       ": join: a rank has run out of input (throw_on_early_termination)"));
  }
  if (ordered) {
    work->wait();
    set_mean_over(present.item<double>());
  } else {
    reducer->set_forward_pass_work_handle(work, joining->divide_by_initial_world_size);
  }
}

void DataParallelEngine::Impl::set_mean_over(double ranks) {
  if (ordered) ordered->set_divisor(joining->divide_by_initial_world_size ? group->size() : ranks);
}

void DataParallelEngine::Impl::announce_sync(bool sync) {
  at::Tensor flag = at::full({1}, sync ? 1.0 : 0.0, at::TensorOptions().device(device()));
  start_sum(*group, flag)->wait();
}

// What this rank, out of input, owes the others for one of their steps.
void DataParallelEngine::Impl::shadow_one_step() {
  rebuild_buckets();
  if (syncs_buffers()) sync_buffers(agree_on_rank(false));
  const bool sync =
      sum_over_ranks(*group, at::zeros({1}, at::TensorOptions().device(device()))) > 0;
  require_forward_param_sync = sync;
  if (!sync) return;

  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> reductions;
  for (auto& bucket : reducer->get_grad_buckets(/*return_zero_tensors=*/true)) {
    reductions.push_back(reducer->run_comm_hook(bucket));
  }
  for (auto& reduction : reductions) reduction->waitAndThrow();
  if (options.find_unused_parameters) {
    std::vector<at::Tensor> used{reducer->get_local_used_map_on_device()};
    group->group->allreduce(used)->wait();
  }
  reducer->push_rebuilt_params_for_all_indices();
}

void DataParallelEngine::join(const std::function<void()>& loop, const JoinOptions& options) {
  Impl& self = *impl_;
  if (self.joining) throw InvalidArgument("join: this model is already inside a join");
  if (self.compression) {
    throw InvalidArgument(
        "join: a GradientCompression keeps what ranks have not sent yet, which a rank without "
        "input cannot; use bf16_compress or no hook");
  }
  self.joining = Impl::Joining{.divide_by_initial_world_size = options.divide_by_initial_world_size,
                               .throw_on_early_termination = options.throw_on_early_termination};
  self.logger->set_uneven_input_join();
  const auto leave = [&] {
    self.joining.reset();
    if (self.ordered) self.ordered->set_divisor(self.group->size());
  };
  try {
    loop();
    const auto on_device = at::TensorOptions().device(self.device());
    bool last = true;
    while (true) {
      const double still_working = sum_over_ranks(*self.group, at::zeros({1}, on_device));
      if (still_working == 0) break;
      if (options.throw_on_early_termination) {
        sum_over_ranks(*self.group, at::ones({1}, on_device));
        throw Error(concat("rank ", self.group->global_ranks[self.group->rank],
                           ": join: this rank has run out of input (throw_on_early_termination)"));
      }
      // This rank adds up a shard for the others, so it needs their divisor.
      self.set_mean_over(still_working);
      self.shadow_one_step();
      last = false;
    }
    // The model of a rank that worked to the end goes to all.
    self.broadcast_state(self.agree_on_rank(last), self.options.broadcast_buffers);
  } catch (...) {
    leave();
    throw;
  }
  leave();
}

}  // namespace lockstep
