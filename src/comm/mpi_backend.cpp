#include "comm/mpi_backend.h"

#include <limits>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

#include "comm/mpi_memory.h"
#include "comm/mpi_work.h"
#include "comm/shm_tensors.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using MpiWorkPtr = c10::intrusive_ptr<c10d::Work>;

}  // namespace

MpiBackend::MpiBackend(const Spec& spec)
    : Backend(spec.rank, static_cast<int>(spec.global_ranks.size())),
      group_(MpiThread::get().make_group(spec.global_ranks, spec.number)),
      timeout_(spec.timeout) {}

LockstepMpiOperation MpiBackend::operation(LockstepMpiKind kind) const {
  LockstepMpiOperation operation{};
  operation.group = group_;
  operation.kind = kind;
  return operation;
}

MpiWorkPtr MpiBackend::run(c10d::OpType type, const char* title, Tensors outputs,
                           std::vector<Part> parts) {
  auto work = c10::make_intrusive<MpiWork>(getRank(), type, title, std::move(outputs), ++sequence_,
                                           parts.size());
  if (parts.empty()) work->succeed();
  for (Part& part : parts) {
    MpiThread::get().post({.operation = part.operation,
                           .done = [work, finish = std::move(part.finish)](
                                       int source) { work->part_done(finish, source); },
                           .failed = [work](const std::exception_ptr& error) { work->fail(error); },
                           .timeout = timeout_});
  }
  return work;
}

MpiBackend::Part MpiBackend::reduction(LockstepMpiKind kind, const at::Tensor& tensor,
                                       const c10d::ReduceOp& op, int root) const {
  const c10d::ReduceOp::RedOpType reduce_kind = op;
  const MpiReducible prepared = reducible("all_reduce", tensor, reduce_kind);
  Part part{.operation = operation(kind), .finish = {}};
  part.operation.type = prepared.type;
  part.operation.reduction = prepared.reduction;
  part.operation.to = prepared.memory.mutable_data_ptr();
  part.operation.count = prepared.memory.numel();
  part.operation.peer = root;
  const bool gets_it = kind == kMpiAllReduce || getRank() == root;
  const int ranks = reduce_kind == c10d::ReduceOp::AVG ? getSize() : 1;
  part.finish = [memory = prepared.memory, tensor, gets_it, ranks] {
    if (!gets_it) return;
    if (ranks > 1) divide_by(memory, ranks);
    put_received(tensor, memory);
  };
  return part;
}

MpiWorkPtr MpiBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  std::vector<Part> parts;
  for (const auto& tensor : tensors) {
    parts.push_back(reduction(kMpiAllReduce, tensor, options.reduceOp, 0));
  }
  return run(c10d::OpType::ALLREDUCE, "mpi:all_reduce", tensors, std::move(parts));
}

MpiWorkPtr MpiBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return allreduce(tensors, options);  // which says that it cannot
}

MpiWorkPtr MpiBackend::allreduce_coalesced(Tensors& tensors,
                                           const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

MpiWorkPtr MpiBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return run(
      c10d::OpType::REDUCE, "mpi:reduce", tensors,
      {reduction(kMpiReduce, tensors.at(0), options.reduceOp, static_cast<int>(options.rootRank))});
}

MpiWorkPtr MpiBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  std::vector<Part> parts;
  for (const auto& tensor : tensors) {
    check_for_mpi("broadcast", tensor);
    const at::Tensor memory = solid(tensor);
    const MovedType moved = moved_type(memory);
    Part part{.operation = operation(kMpiBroadcast),
              .finish = [memory, tensor] { put_received(tensor, memory); }};
    part.operation.type = moved.type;
    part.operation.to = memory.mutable_data_ptr();
    part.operation.count = memory.numel() * moved.per_element;
    part.operation.peer = static_cast<int>(options.rootRank);
    parts.push_back(std::move(part));
  }
  return run(c10d::OpType::BROADCAST, "mpi:broadcast", tensors, std::move(parts));
}

// Of each rank a tensor like `input`; only at the root where there is one.
MpiBackend::Part MpiBackend::gathering(LockstepMpiKind kind, const Tensors& outputs,
                                       const at::Tensor& input, int root) const {
  check_for_mpi("gather", input);
  check_alike("gather", outputs, input);
  const at::Tensor from = solid(input);
  const MovedType moved = moved_type(from);
  const bool receives = kind == kMpiAllGather || getRank() == root;
  const at::Tensor all = at::empty({receives ? getSize() * from.numel() : 0}, from.options());
  Part part{
      .operation = operation(kind), .finish = [from, all, outputs, receives] {
        if (!receives) return;
        const std::int64_t each = from.numel();
        for (std::size_t i = 0; i < outputs.size(); ++i) {
          outputs[i].copy_(
              all.narrow(0, static_cast<std::int64_t>(i) * each, each).view(outputs[i].sizes()));
        }
      }};
  part.operation.type = moved.type;
  part.operation.from = from.const_data_ptr();
  part.operation.to = all.mutable_data_ptr();
  part.operation.count = from.numel() * moved.per_element;
  part.operation.peer = root;
  return part;
}

MpiWorkPtr MpiBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::AllgatherOptions&) {
  std::vector<Part> parts;
  Tensors all;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    parts.push_back(gathering(kMpiAllGather, outputs.at(i), inputs[i], 0));
    all.insert(all.end(), outputs[i].begin(), outputs[i].end());
  }
  return run(c10d::OpType::ALLGATHER, "mpi:all_gather", std::move(all), std::move(parts));
}

MpiWorkPtr MpiBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                       const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

MpiWorkPtr MpiBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                           const c10d::AllgatherOptions& options) {
  // c10d lists them by rank here.
  std::vector<Tensors> by_input(inputs.size());
  for (const auto& of_rank : outputs) {
    for (std::size_t i = 0; i < inputs.size(); ++i) by_input[i].push_back(of_rank.at(i));
  }
  return allgather(by_input, inputs, options);
}

MpiWorkPtr MpiBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::AllgatherOptions& options) {
  std::vector<Tensors> split;
  for (const auto& output : outputs) {
    split.push_back(shm_operation::split("all_gather_into_tensor", output, getSize()));
  }
  return allgather(split, inputs, options);
}

MpiWorkPtr MpiBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::GatherOptions& options) {
  const Tensors gathered = outputs.empty() ? Tensors{} : outputs[0];
  return run(c10d::OpType::GATHER, "mpi:gather", gathered,
             {gathering(kMpiGather, gathered, inputs.at(0), static_cast<int>(options.rootRank))});
}

MpiWorkPtr MpiBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                               const c10d::ScatterOptions& options) {
  const at::Tensor& output = outputs.at(0);
  check_for_mpi("scatter", output);
  at::Tensor from;
  if (!inputs.empty()) {
    check_alike("scatter", inputs[0], output);
    Tensors flat;
    for (const auto& input : inputs[0]) flat.push_back(solid(input).view({-1}));
    from = at::cat(flat);
  }
  const at::Tensor to = at::empty({output.numel()}, output.options());
  const MovedType moved = moved_type(output);
  Part part{.operation = operation(kMpiScatter),
            .finish = [from, to, output] { output.copy_(to.view(output.sizes())); }};
  part.operation.type = moved.type;
  part.operation.from = from.defined() ? from.const_data_ptr() : nullptr;
  part.operation.to = to.mutable_data_ptr();
  part.operation.count = to.numel() * moved.per_element;
  part.operation.peer = static_cast<int>(options.rootRank);
  return run(c10d::OpType::SCATTER, "mpi:scatter", outputs, {std::move(part)});
}

MpiBackend::Part MpiBackend::scattered_reduction(const at::Tensor& output, const Tensors& inputs,
                                                 const c10d::ReduceOp& op) const {
  const c10d::ReduceOp::RedOpType kind = op;
  check_alike("reduce_scatter", inputs, output);
  Tensors flat;
  for (const auto& input : inputs) flat.push_back(solid(input).view({-1}));
  const MpiReducible from = reducible("reduce_scatter", at::cat(flat), kind);
  const std::int64_t each = from.memory.numel() / getSize();
  const at::Tensor to = at::empty({each}, from.memory.options());
  const int ranks = kind == c10d::ReduceOp::AVG ? getSize() : 1;
  Part part{.operation = operation(kMpiReduceScatter),
            .finish = [memory = from.memory, to, output, ranks] {
              if (ranks > 1) divide_by(to, ranks);
              if (output.is_complex()) {
                const at::Tensor parts = at::view_as_real(output);
                parts.copy_(to.view(parts.sizes()));
              } else {
                output.copy_(to.view(output.sizes()));
              }
            }};
  part.operation.type = from.type;
  part.operation.reduction = from.reduction;
  part.operation.from = from.memory.const_data_ptr();
  part.operation.to = to.mutable_data_ptr();
  part.operation.count = each;
  return part;
}

MpiWorkPtr MpiBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                      const c10d::ReduceScatterOptions& options) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    parts.push_back(scattered_reduction(outputs[i], inputs.at(i), options.reduceOp));
  }
  return run(c10d::OpType::REDUCE_SCATTER, "mpi:reduce_scatter", outputs, std::move(parts));
}

MpiWorkPtr MpiBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

MpiWorkPtr MpiBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  std::vector<Tensors> split;
  for (const auto& input : inputs) {
    split.push_back(shm_operation::split("reduce_scatter_tensor", input, getSize()));
  }
  return reduce_scatter(outputs, split, options);
}

// The i-th input goes to rank i, the i-th output comes from there; their sizes may differ.
MpiBackend::Part MpiBackend::exchange(const Tensors& outputs, const Tensors& inputs) const {
  struct Places {
    std::vector<int> send_counts, send_places, receive_counts, receive_places;
  };
  const auto places = std::make_shared<Places>();
  const MovedType moved = moved_type(inputs.at(0));
  const auto list = [&moved](const Tensors& tensors, std::vector<int>& counts,
                             std::vector<int>& begins) {
    std::int64_t total = 0;
    for (const auto& tensor : tensors) {
      check_for_mpi("all_to_all", tensor);
      const std::int64_t count = tensor.numel() * moved.per_element;
      counts.push_back(static_cast<int>(count));
      begins.push_back(static_cast<int>(total));
      total += count;
      if (total > std::numeric_limits<int>::max()) {
        throw InvalidArgument(
            "all_to_all: backend mpi cannot exchange more than 2^31 - 1 elements at once; split "
            "it");
      }
    }
    return total / moved.per_element;
  };
  Tensors flat;
  for (const auto& input : inputs) flat.push_back(solid(input).view({-1}));
  list(inputs, places->send_counts, places->send_places);
  const std::int64_t received = list(outputs, places->receive_counts, places->receive_places);
  const at::Tensor from = at::cat(flat);
  const at::Tensor to = at::empty({received}, from.options());
  Part part{.operation = operation(kMpiAllToAll), .finish = [from, to, outputs, places] {
              std::int64_t offset = 0;
              for (const auto& output : outputs) {
                output.copy_(to.narrow(0, offset, output.numel()).view(output.sizes()));
                offset += output.numel();
              }
            }};
  part.operation.type = moved.type;
  part.operation.from = from.const_data_ptr();
  part.operation.to = to.mutable_data_ptr();
  part.operation.send_counts = places->send_counts.data();
  part.operation.send_places = places->send_places.data();
  part.operation.receive_counts = places->receive_counts.data();
  part.operation.receive_places = places->receive_places.data();
  return part;
}

MpiWorkPtr MpiBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  return run(c10d::OpType::ALLTOALL, "mpi:all_to_all", outputs, {exchange(outputs, inputs)});
}

MpiWorkPtr MpiBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                     std::vector<int64_t>& output_splits,
                                     std::vector<int64_t>& input_splits,
                                     const c10d::AllToAllOptions&) {
  const Tensors to = shm_operation::split("all_to_all_single", output, getSize(), output_splits);
  const Tensors from = shm_operation::split("all_to_all_single", input, getSize(), input_splits);
  return run(c10d::OpType::ALLTOALL_BASE, "mpi:all_to_all", {output}, {exchange(to, from)});
}

MpiWorkPtr MpiBackend::barrier(const c10d::BarrierOptions&) {
  return run(c10d::OpType::BARRIER, "mpi:barrier", {},
             {{.operation = operation(kMpiBarrier), .finish = {}}});
}

MpiBackend::Part MpiBackend::message(LockstepMpiKind kind, const at::Tensor& tensor, int peer,
                                     int tag) const {
  check_for_mpi(kind == kMpiSend ? "send" : "recv", tensor);
  const at::Tensor memory = solid(tensor);
  const MovedType moved = moved_type(memory);
  Part part{.operation = operation(kind), .finish = [memory, tensor, kind] {
              if (kind == kMpiReceive) put_received(tensor, memory);
            }};
  part.operation.type = moved.type;
  part.operation.from = memory.const_data_ptr();
  part.operation.to = memory.mutable_data_ptr();
  part.operation.count = memory.numel() * moved.per_element;
  part.operation.peer = peer;
  part.operation.tag = tag;
  return part;
}

MpiWorkPtr MpiBackend::send(Tensors& tensors, int peer, int tag) {
  return run(c10d::OpType::SEND, "mpi:send", tensors,
             {message(kMpiSend, tensors.at(0), peer, tag)});
}

MpiWorkPtr MpiBackend::recv(Tensors& tensors, int peer, int tag) {
  return run(c10d::OpType::RECV, "mpi:recv", tensors,
             {message(kMpiReceive, tensors.at(0), peer, tag)});
}

MpiWorkPtr MpiBackend::recvAnysource(Tensors& tensors, int tag) {
  return run(c10d::OpType::RECVANYSOURCE, "mpi:recv", tensors,
             {message(kMpiReceive, tensors.at(0), -1, tag)});
}

}  // namespace lockstep
