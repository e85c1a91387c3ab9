#include "comm/shm_backend.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/debug.h>

#include "comm/guarded_backend.h"
#include "comm/messages.h"
#include "comm/shm_formation.h"
#include "comm/shm_message.h"
#include "comm/shm_tensors.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using ShmWorkPtr = c10::intrusive_ptr<c10d::Work>;

/// An operation of the shm backend, from its call on.
class ShmWork : public c10d::Work {
 public:
  ShmWork(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> outputs,
          std::uint64_t sequence)
      : Work(rank, type, title),
        outputs_(std::move(outputs)),
        sequence_(sequence),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()))) {}

  void run(GroupTeam& team, const std::function<void(GroupTeam&)>& body) {
    try {
      const at::NoGradGuard no_grad;
      body(team);
    } catch (...) {
      // Callbacks of the future may wait for this work.
      finish(std::current_exception());
      future_->setError(std::current_exception());
      return;
    }
    finish();
    future_->markCompleted(c10::IValue(outputs_));
  }

  std::vector<at::Tensor> result() override { return outputs_; }
  uint64_t getSequencenumber() const override { return sequence_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  std::vector<at::Tensor> outputs_;
  std::uint64_t sequence_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Where nobody asked, no words are made about it. What Gloo's wrapper checks under
// TORCH_DISTRIBUTED_DEBUG=DETAIL is Gloo's.
bool fit_for_team(const GroupImpl& group) {
  if (group.size() == 1 || c10d::debug_level() == c10d::DebugLevel::Detail) return false;
  return std::ranges::all_of(group.global_ranks,
                             [&](int rank) { return group.peers->knows(rank); });
}

std::vector<at::Tensor> joined(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<at::Tensor> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

ShmBackend::ShmBackend(std::shared_ptr<GroupTeam> team, c10::intrusive_ptr<c10d::Backend> gloo,
                       std::chrono::milliseconds timeout)
    : Backend(team->rank(), team->size()),
      team_(std::move(team)),
      gloo_(std::move(gloo)),
      timeout_(timeout) {}

void ShmBackend::setTimeout(std::chrono::milliseconds timeout) {
  gloo_->setTimeout(timeout);
  timeout_ = timeout;
  queue_.run_here([&] { team_->set_timeout(timeout); });
}

ShmWorkPtr ShmBackend::run(const Operation& operation, Tensors outputs, Body body) {
  auto work = c10::make_intrusive<ShmWork>(getRank(), operation.type, operation.title,
                                           std::move(outputs), ++sequence_);
  // A callback of an earlier operation must not wait for the thread that it runs on.
  if (!operation.async && !queue_.on_own_thread()) {
    queue_.run_here([&] {
      team_->set_busy_core(false);
      work->run(*team_, body);
    });
  } else {
    queue_.post([team = team_, work, body = std::move(body)] {
      team->set_busy_core(true);
      work->run(*team, body);
    });
  }
  return work;
}

ShmWorkPtr ShmBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return run({c10d::OpType::BROADCAST, "shm:broadcast", options.asyncOp}, tensors,
             shm_operation::broadcast(tensors, static_cast<int>(options.rootRank)));
}

ShmWorkPtr ShmBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (!tensors.empty() && tensors[0].layout() == c10::kSparse) {
    return gloo_->allreduce(tensors, options);
  }
  return run({c10d::OpType::ALLREDUCE, "shm:all_reduce", options.asyncOp}, tensors,
             shm_operation::all_reduce(tensors, options.reduceOp, getSize()));
}

ShmWorkPtr ShmBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return gloo_->allreduce_sparse(tensors, options);
}

ShmWorkPtr ShmBackend::allreduce_coalesced(Tensors& tensors,
                                           const c10d::AllreduceCoalescedOptions& options) {
  return run({c10d::OpType::ALLREDUCE_COALESCED, "shm:all_reduce", options.asyncOp}, tensors,
             shm_operation::all_reduce(tensors, options.reduceOp, getSize()));
}

ShmWorkPtr ShmBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return run({c10d::OpType::REDUCE, "shm:reduce", options.asyncOp}, tensors,
             shm_operation::reduce(tensors, options.reduceOp, getSize(),
                                   static_cast<int>(options.rootRank)));
}

ShmWorkPtr ShmBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::AllgatherOptions& options) {
  return run({c10d::OpType::ALLGATHER, "shm:all_gather", options.asyncOp}, joined(outputs),
             shm_operation::all_gather(outputs, inputs));
}

ShmWorkPtr ShmBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                       const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

// One list of outputs for each input, as all_gather() has them for one.
ShmWorkPtr ShmBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) {
  // c10d lists them by rank here.
  std::vector<Tensors> by_input(inputs.size());
  for (const auto& of_rank : outputs) {
    for (std::size_t i = 0; i < inputs.size(); ++i) by_input[i].push_back(of_rank.at(i));
  }
  return run({c10d::OpType::ALLGATHER_COALESCED, "shm:all_gather", options.asyncOp},
             joined(outputs), shm_operation::all_gather(by_input, inputs));
}

ShmWorkPtr ShmBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::AllgatherOptions& options) {
  std::vector<Tensors> parts;
  for (const auto& output : outputs) {
    parts.push_back(shm_operation::split("all_gather_into_tensor", output, getSize()));
  }
  return run({c10d::OpType::_ALLGATHER_BASE, "shm:all_gather", options.asyncOp}, outputs,
             shm_operation::all_gather(parts, inputs));
}

ShmWorkPtr ShmBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::GatherOptions& options) {
  const Tensors gathered = outputs.empty() ? Tensors{} : outputs[0];
  return run({c10d::OpType::GATHER, "shm:gather", options.asyncOp}, gathered,
             shm_operation::gather(gathered, inputs.at(0), static_cast<int>(options.rootRank)));
}

ShmWorkPtr ShmBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                               const c10d::ScatterOptions& options) {
  const Tensors sent = inputs.empty() ? Tensors{} : inputs[0];
  return run({c10d::OpType::SCATTER, "shm:scatter", options.asyncOp}, outputs,
             shm_operation::scatter(outputs.at(0), sent, static_cast<int>(options.rootRank)));
}

ShmWorkPtr ShmBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                      const c10d::ReduceScatterOptions& options) {
  return run({c10d::OpType::REDUCE_SCATTER, "shm:reduce_scatter", options.asyncOp}, outputs,
             shm_operation::reduce_scatter(outputs, inputs, options.reduceOp, getSize()));
}

ShmWorkPtr ShmBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

ShmWorkPtr ShmBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  std::vector<Tensors> parts;
  for (const auto& input : inputs) {
    parts.push_back(shm_operation::split("reduce_scatter_tensor", input, getSize()));
  }
  return run({c10d::OpType::_REDUCE_SCATTER_BASE, "shm:reduce_scatter", options.asyncOp}, outputs,
             shm_operation::reduce_scatter(outputs, parts, options.reduceOp, getSize()));
}

ShmWorkPtr ShmBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                     std::vector<int64_t>& output_splits,
                                     std::vector<int64_t>& input_splits,
                                     const c10d::AllToAllOptions& options) {
  const auto to = shm_operation::split("all_to_all_single", output, getSize(), output_splits);
  const auto from = shm_operation::split("all_to_all_single", input, getSize(), input_splits);
  return run({c10d::OpType::ALLTOALL_BASE, "shm:all_to_all", options.asyncOp}, {output},
             shm_operation::all_to_all(to, from));
}

ShmWorkPtr ShmBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                const c10d::AllToAllOptions& options) {
  return run({c10d::OpType::ALLTOALL, "shm:all_to_all", options.asyncOp}, outputs,
             shm_operation::all_to_all(outputs, inputs));
}

ShmWorkPtr ShmBackend::barrier(const c10d::BarrierOptions& options) {
  return run({c10d::OpType::BARRIER, "shm:barrier", options.asyncOp}, {},
             [](GroupTeam& team) { team.barrier(); });
}

ShmWorkPtr ShmBackend::send(Tensors& tensors, int peer, int tag) {
  if (!team_->has_mail_with(peer)) return gloo_->send(tensors, peer, tag);
  return shm_message::send(team_, tensors, {.peer = peer, .tag = tag, .timeout = timeout_});
}

ShmWorkPtr ShmBackend::recv(Tensors& tensors, int peer, int tag) {
  if (!team_->has_mail_with(peer)) return gloo_->recv(tensors, peer, tag);
  return shm_message::receive(team_, tensors, {.peer = peer, .tag = tag, .timeout = timeout_});
}

ShmWorkPtr ShmBackend::recvAnysource(Tensors& tensors, int tag) {
  if (!team_->one_machine()) {
    throw InvalidArgument(
        "recv: from any rank it cannot be had on backend hybrid, where messages come by two ways; "
        "name the sender, or use a group with NewGroupOptions::backend = \"gloo\"");
  }
  return shm_message::receive(team_, tensors,
                              {.peer = ShmMail::kAnyone, .tag = tag, .timeout = timeout_});
}

void attach_team(GroupImpl& group) {
  for (const std::string asked : {"shm", "hybrid", "auto"}) {
    const auto at = group.backend.find(asked);
    if (at == std::string::npos) continue;
    const ShmUse use{.what = "its collectives go",
                     .insisted = asked != "auto",
                     .tag = kBackendTeamTag,
                     .mail = true};
    std::string name = "gloo";
    if (asked == "auto" && !fit_for_team(group)) {
      group.backend.replace(at, asked.size(), name);
      return;
    }
    if (auto team = form_group_team(group, group.gloo, kShmFormationTag, use)) {
      const std::shared_ptr<GroupTeam> shared = std::move(team);
      group.shm->also_poison(shared);
      const auto backend = c10::make_intrusive<ShmBackend>(shared, group.gloo, group.timeout);
      name = backend->getBackendName();
      group.group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                              c10::make_intrusive<GuardedBackend>(backend, group.guard));
    }
    group.backend.replace(at, asked.size(), name);
    return;
  }
}

}  // namespace lockstep
