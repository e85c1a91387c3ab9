#include <algorithm>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "comm/group_impl.h"
#include "comm/messages.h"
#include "comm/work_impl.h"
#include "lockstep/c10d.h"
#include "lockstep/error.h"
#include "lockstep/process_group.h"

// torch 2.13 deprecates names whose successors 2.11 does not have.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;

c10d::ReduceOp native(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::avg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::band:
      return c10d::ReduceOp::BAND;
    case ReduceOp::bor:
      return c10d::ReduceOp::BOR;
    case ReduceOp::bxor:
      return c10d::ReduceOp::BXOR;
  }
  throw InvalidArgument(concat("ReduceOp ", static_cast<int>(op), " does not exist"));
}

void check_rank(const GroupImpl& group, const char* operation, const char* what, int rank) {
  if (rank < 0 || rank >= group.size()) {
    throw InvalidArgument(concat(operation, ": ", what, " ", rank,
                                 " is outside the group's ranks [0, ", group.size(), ")"));
  }
}

void check_tag(const char* operation, int tag) {
  if (tag < 0 || tag >= kFirstReservedTag) {
    throw InvalidArgument(concat(operation, ": tag ", tag, " is outside [0, 2^30)"));
  }
}

void check_list(const GroupImpl& group, const char* operation, const char* what,
                const Tensors& tensors, bool expected) {
  const std::size_t size = expected ? static_cast<std::size_t>(group.size()) : 0;
  if (tensors.size() != size) {
    throw InvalidArgument(concat(operation, ": ", what, " has ", tensors.size(),
                                 " tensors; it needs ", size,
                                 expected ? ", one for each rank" : " except at the root"));
  }
}

void check_tensor(const char* operation, const at::Tensor& tensor) {
  if (!tensor.defined()) throw InvalidArgument(concat(operation, ": the tensor is undefined"));
}

/// How a reduction is asked of the backend. Gloo has no average: the sum is divided when the
/// operation has ended.
struct BackendOp {
  BackendOp(const GroupImpl& group, ReduceOp op, const at::Tensor& result)
      : by_hand(op == ReduceOp::avg && group.serves_with_gloo(result.device())),
        native_op(native(by_hand ? ReduceOp::sum : op)) {
    if (by_hand) finish = [result, size = group.size()] { divide(result, size); };
  }

  static void divide(const at::Tensor& tensor, int size) {
    if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) {
      tensor.floor_divide_(size);
    } else {
      tensor.div_(size);
    }
  }

  bool by_hand;
  c10d::ReduceOp native_op;
  std::function<void()> finish;
};

/// Tells backend shm whether the caller goes on meanwhile; the others have rules of their own for
/// it.
template <typename Options>
Options& told(Options& options, const GroupImpl& group, const at::Tensor& tensor, bool async_op) {
  if (group.serves_with_shm(tensor.device())) options.asyncOp = async_op;
  return options;
}

}  // namespace

bool Work::is_completed() const {
  return !impl_ ||
         std::ranges::all_of(impl_->parts, [](auto& part) { return part->isCompleted(); });
}

void Work::wait() {
  if (impl_) impl_->wait();
}

int Work::source_rank() const {
  if (!impl_) throw InvalidArgument("Work::source_rank: this operation is not a receive");
  return impl_->parts.front()->sourceRank();
}

GroupImpl& ProcessGroup::member() const {
  if (!impl_) {
    throw InvalidArgument("this rank is not a member of the group (World::new_group left it out)");
  }
  return *impl_;
}

GroupImpl& ProcessGroup::get(const char* operation) const {
  GroupImpl& group = member();
  group.guard->check_usable(operation);
  return group;
}

int ProcessGroup::rank() const {
  return member().rank;
}
int ProcessGroup::size() const {
  return member().size();
}
const std::vector<int>& ProcessGroup::global_ranks() const {
  return member().global_ranks;
}
const std::string& ProcessGroup::name() const {
  return member().name;
}
const std::string& ProcessGroup::backend() const {
  return member().backend;
}

void ProcessGroup::abort() {
  if (impl_) impl_->guard->abort();
}

Work ProcessGroup::all_reduce(const at::Tensor& tensor, const AllReduceOptions& options) {
  check_tensor("all_reduce", tensor);
  GroupImpl& group = get("all_reduce");
  BackendOp op(group, options.op, tensor);
  c10d::AllreduceOptions native_options;
  native_options.reduceOp = op.native_op;
  Tensors tensors = one(tensor);
  told(native_options, group, tensor, options.async_op);
  return make_work(group.group->allreduce(tensors, native_options), options.async_op, op.finish);
}

Work ProcessGroup::reduce(const at::Tensor& tensor, const ReduceOptions& options) {
  check_tensor("reduce", tensor);
  GroupImpl& group = get("reduce");
  check_rank(group, "reduce", "root", options.root);
  BackendOp op(group, options.op, tensor);
  c10d::ReduceOptions native_options;
  native_options.reduceOp = op.native_op;
  native_options.rootRank = options.root;
  Tensors tensors = one(tensor);
  told(native_options, group, tensor, options.async_op);
  return make_work(group.group->reduce(tensors, native_options), options.async_op,
                   group.rank == options.root ? op.finish : nullptr);
}

Work ProcessGroup::broadcast(const at::Tensor& tensor, const RootedOptions& options) {
  check_tensor("broadcast", tensor);
  GroupImpl& group = get("broadcast");
  check_rank(group, "broadcast", "root", options.root);
  c10d::BroadcastOptions native_options;
  native_options.rootRank = options.root;
  Tensors tensors = one(tensor);
  told(native_options, group, tensor, options.async_op);
  return make_work(group.group->broadcast(tensors, native_options), options.async_op);
}

Work ProcessGroup::all_gather(const Tensors& outputs, const at::Tensor& input,
                              const AsyncOptions& options) {
  check_tensor("all_gather", input);
  GroupImpl& group = get("all_gather");
  check_list(group, "all_gather", "outputs", outputs, true);
  std::vector<Tensors> output_lists{outputs};
  Tensors inputs = one(input);
  c10d::AllgatherOptions native_options;
  told(native_options, group, input, options.async_op);
  return make_work(group.group->allgather(output_lists, inputs, native_options), options.async_op);
}

Work ProcessGroup::all_gather_into_tensor(const at::Tensor& output, const at::Tensor& input,
                                          const AsyncOptions& options) {
  check_tensor("all_gather_into_tensor", output);
  check_tensor("all_gather_into_tensor", input);
  GroupImpl& group = get("all_gather_into_tensor");
  if (output.numel() != input.numel() * group.size()) {
    throw InvalidArgument(concat("all_gather_into_tensor: output has ", output.numel(),
                                 " elements; ", group.size(), " ranks with ", input.numel(),
                                 " each need ", input.numel() * group.size()));
  }
  at::Tensor out = output, in = input;
  c10d::AllgatherOptions native_options;
  told(native_options, group, input, options.async_op);
  return make_work(group.group->_allgather_base(out, in, native_options), options.async_op);
}

Work ProcessGroup::gather(const Tensors& outputs, const at::Tensor& input,
                          const RootedOptions& options) {
  check_tensor("gather", input);
  GroupImpl& group = get("gather");
  check_rank(group, "gather", "root", options.root);
  check_list(group, "gather", "outputs", outputs, group.rank == options.root);
  c10d::GatherOptions native_options;
  native_options.rootRank = options.root;
  std::vector<Tensors> output_lists;
  if (group.rank == options.root) output_lists.push_back(outputs);
  Tensors inputs = one(input);
  told(native_options, group, input, options.async_op);
  return make_work(group.group->gather(output_lists, inputs, native_options), options.async_op);
}

Work ProcessGroup::scatter(const at::Tensor& output, const Tensors& inputs,
                           const RootedOptions& options) {
  check_tensor("scatter", output);
  GroupImpl& group = get("scatter");
  check_rank(group, "scatter", "root", options.root);
  check_list(group, "scatter", "inputs", inputs, group.rank == options.root);
  c10d::ScatterOptions native_options;
  native_options.rootRank = options.root;
  std::vector<Tensors> input_lists;
  if (group.rank == options.root) input_lists.push_back(inputs);
  Tensors outputs = one(output);
  told(native_options, group, output, options.async_op);
  return make_work(group.group->scatter(outputs, input_lists, native_options), options.async_op);
}

Work ProcessGroup::reduce_scatter(const at::Tensor& output, const Tensors& inputs,
                                  const AllReduceOptions& options) {
  check_tensor("reduce_scatter", output);
  GroupImpl& group = get("reduce_scatter");
  check_list(group, "reduce_scatter", "inputs", inputs, true);
  BackendOp op(group, options.op, output);
  c10d::ReduceScatterOptions native_options;
  native_options.reduceOp = op.native_op;
  Tensors outputs = one(output);
  std::vector<Tensors> input_lists{inputs};
  told(native_options, group, output, options.async_op);
  return make_work(group.group->reduce_scatter(outputs, input_lists, native_options),
                   options.async_op, op.finish);
}

Work ProcessGroup::reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                                         const AllReduceOptions& options) {
  check_tensor("reduce_scatter_tensor", output);
  check_tensor("reduce_scatter_tensor", input);
  GroupImpl& group = get("reduce_scatter_tensor");
  if (input.numel() != output.numel() * group.size()) {
    throw InvalidArgument(concat("reduce_scatter_tensor: input has ", input.numel(), " elements; ",
                                 group.size(), " ranks with ", output.numel(), " each need ",
                                 output.numel() * group.size()));
  }
  BackendOp op(group, options.op, output);
  c10d::ReduceScatterOptions native_options;
  native_options.reduceOp = op.native_op;
  at::Tensor out = output, in = input;
  told(native_options, group, output, options.async_op);
  return make_work(group.group->_reduce_scatter_base(out, in, native_options), options.async_op,
                   op.finish);
}

Work ProcessGroup::all_to_all(const Tensors& outputs, const Tensors& inputs,
                              const AsyncOptions& options) {
  GroupImpl& group = get("all_to_all");
  check_list(group, "all_to_all", "outputs", outputs, true);
  check_list(group, "all_to_all", "inputs", inputs, true);
  Tensors out = outputs, in = inputs;
  if (!group.serves_with_gloo(in.front().device()) || !in.front().is_cpu()) {
    c10d::AllToAllOptions native_options;
    told(native_options, group, in.front(), options.async_op);
    return make_work(group.group->alltoall(out, in, native_options), options.async_op);
  }
  // Gloo has learnt this in torch 2.13; with messages it works everywhere.
  out[group.rank].copy_(in[group.rank]);
  std::vector<c10::intrusive_ptr<c10d::Work>> parts;
  for (int step = 1; step < group.size(); ++step) {
    const int peer = (group.rank + step) % group.size();
    Tensors received = one(out[peer]), sent = one(in[peer]);
    parts.push_back(group.group->recv(received, peer, kAllToAllTag));
    parts.push_back(group.group->send(sent, peer, kAllToAllTag));
  }
  return make_work(std::move(parts), options.async_op);
}

Work ProcessGroup::all_to_all_single(const at::Tensor& output, const at::Tensor& input,
                                     const AllToAllSingleOptions& options) {
  check_tensor("all_to_all_single", output);
  check_tensor("all_to_all_single", input);
  GroupImpl& group = get("all_to_all_single");
  at::Tensor out = output, in = input;
  auto output_splits = options.output_split_sizes, input_splits = options.input_split_sizes;
  c10d::AllToAllOptions native_options;
  told(native_options, group, input, options.async_op);
  return make_work(group.group->alltoall_base(out, in, output_splits, input_splits, native_options),
                   options.async_op);
}

Work ProcessGroup::isend(const at::Tensor& tensor, const PointToPointOptions& options) {
  check_tensor("send", tensor);
  GroupImpl& group = get("send");
  check_rank(group, "send", "peer", options.peer);
  check_tag("send", options.tag);
  Tensors tensors = one(tensor);
  return make_work(group.group->send(tensors, options.peer, options.tag), true);
}

Work ProcessGroup::irecv(const at::Tensor& tensor, const PointToPointOptions& options) {
  check_tensor("recv", tensor);
  GroupImpl& group = get("recv");
  check_rank(group, "recv", "peer", options.peer);
  check_tag("recv", options.tag);
  Tensors tensors = one(tensor);
  return make_work(group.group->recv(tensors, options.peer, options.tag), true);
}

Work ProcessGroup::irecv_any(const at::Tensor& tensor, int tag) {
  check_tensor("recv", tensor);
  check_tag("recv", tag);
  Tensors tensors = one(tensor);
  return make_work(get("recv").group->recvAnysource(tensors, tag), true);
}

void ProcessGroup::send(const at::Tensor& tensor, const PointToPointOptions& options) {
  isend(tensor, options).wait();
}

void ProcessGroup::recv(const at::Tensor& tensor, const PointToPointOptions& options) {
  irecv(tensor, options).wait();
}

std::vector<Work> ProcessGroup::batch_isend_irecv(const std::vector<P2POp>& operations) {
  if (operations.empty()) throw InvalidArgument("batch_isend_irecv: there is no operation");
  GroupImpl& group = get("batch_isend_irecv");
  for (const auto& operation : operations) {
    if (!operation.tensor) throw InvalidArgument("batch_isend_irecv: an operation has no tensor");
    check_tensor("batch_isend_irecv", *operation.tensor);
    check_rank(group, "batch_isend_irecv", "peer", operation.peer);
    check_tag("batch_isend_irecv", operation.tag);
  }
  // NCCL needs sends and receives between the same ranks as one unit; Gloo starts each by itself.
  const auto device = operations.front().tensor->device();
  const bool coalesce = group.group->getBackend(device.type())->supportsCoalescing();
  if (coalesce) group.group->startCoalescing(device.type());
  std::vector<Work> works;
  for (const auto& operation : operations) {
    const PointToPointOptions options{.peer = operation.peer, .tag = operation.tag};
    works.push_back(operation.kind == P2POp::Kind::send ? isend(*operation.tensor, options)
                                                        : irecv(*operation.tensor, options));
  }
  if (coalesce) works = {make_work(group.group->endCoalescing(device.type()), true)};
  return works;
}

Work ProcessGroup::barrier(const AsyncOptions& options) {
  GroupImpl& group = get("barrier");
  c10d::BarrierOptions native_options;
  if (group.gloo && group.serves_with_shm(c10::kCPU)) native_options.asyncOp = options.async_op;
  if (group.nccl) {  // which would guess a device by the rank, with a warning
    const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
    native_options.device_ids = {cuda.getDevice().index()};
  }
  return make_work(group.group->barrier(native_options), options.async_op);
}

c10::intrusive_ptr<c10d::ProcessGroup> unwrap(const ProcessGroup& group) {
  if (!group.impl()) throw InvalidArgument("unwrap: this rank is not a member of the group");
  return group.impl()->group;
}

}  // namespace lockstep

#pragma GCC diagnostic pop
