#include "comm/ordered_reduction.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/record_function.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/StreamGuard.h>

#include "comm/element_types.h"
#include "comm/messages.h"
#include "comm/ordered_sum.h"
#include "comm/shm_formation.h"
#include "comm/tensor_future.h"
#include "lockstep/error.h"

// torch 2.13 deprecates names whose successors 2.11 does not have.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace lockstep {
namespace {

// Pieces in which large tensors travel, so that adding one overlaps with the transfer of the next.
constexpr std::int64_t kPieceBytes = 1 << 20;
constexpr int kPiecesInFlight = 4;
// Up to this size, exchanging everything beats shards, which need two rounds of messages.
constexpr std::int64_t kSmallBytes = 16 << 10;

using FuturePtr = OrderedReduction::FuturePtr;

at::Tensor piece_of(const at::Tensor& flat, std::int64_t begin, std::int64_t end) {
  return flat.narrow(0, begin, end - begin);
}

// Cuts [begin, end) into `parts` almost equal ranges; the boundary before part `index`.
std::int64_t boundary(std::int64_t begin, std::int64_t end, int parts, int index) {
  return begin + (end - begin) * index / parts;
}

}  // namespace

OrderedReduction::OrderedReduction(std::shared_ptr<GroupImpl> group)
    : group_(std::move(group)),
      process_group_(group_->group),
      gloo_(group_->gloo),
      divisor_(group_->size()) {}

OrderedReduction::~OrderedReduction() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// Every reduction may use two tags, this one and the one after it.
int OrderedReduction::next_tag() {
  constexpr std::int64_t pairs = (kFirstProbeTag - kFirstReductionTag) / 2;
  return kFirstReductionTag + 2 * static_cast<int>(group_->ordered_sequence++ % pairs);
}

at::Tensor OrderedReduction::Scratch::like(const at::Tensor& tensor, int index) {
  if (buffers_.size() <= static_cast<std::size_t>(index)) buffers_.resize(index + 1);
  at::Tensor& buffer = buffers_[index];
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  if (!buffer.defined() || buffer.numel() < bytes) buffer = at::empty({bytes}, at::kByte);
  return buffer.narrow(0, 0, bytes).view(tensor.scalar_type());
}

FuturePtr OrderedReduction::mean(const at::Tensor& tensor, Urgency urgency) {
  group_->guard->check_usable("all_reduce");
  if (!group_->serves_on_host(tensor.device())) return mean_on_device(tensor);

  FuturePtr future = make_tensor_future(tensor);
  const int tag = next_tag();
  // Complex numbers add like pairs of reals.
  const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  const at::Tensor staged = real.is_cpu() ? real : real.cpu();
  group_->guard->operation_began("all_reduce");
  Scratch& scratch = urgency == Urgency::wait_now ? own_scratch_ : thread_scratch_;
  const Call call{
      .tag = tag, .ticket = group_->shm->take_ticket(), .divisor = divisor_, .urgency = urgency};
  // A profiler follows threads only where it is told to.
  std::shared_ptr<at::ThreadLocalState> profiled;
  if (at::hasCallbacks()) profiled = std::make_shared<at::ThreadLocalState>();
  auto task = [this, tensor, real, staged, future, call, &scratch, profiled] {
    std::optional<at::ThreadLocalStateGuard> caller;
    if (profiled) caller.emplace(*profiled);
    RECORD_FUNCTION("lockstep::all_reduce", std::vector<c10::IValue>());
    try {
      reduce_on_cpu(staged.view({-1}), call, scratch);
      if (!real.is_cpu()) real.copy_(staged);
      group_->guard->operation_ended();
      future->markCompleted(tensor);
    } catch (...) {
      group_->guard->operation_ended();
      try {
        group_->guard->rethrow(std::current_exception(), "all_reduce");
      } catch (...) {
        future->setError(std::current_exception());
      }
    }
  };
  if (urgency == Urgency::wait_now) {
    task();
  } else {
    enqueue(std::move(task));
  }
  return future;
}

void OrderedReduction::reduce_on_cpu(const at::Tensor& flat, const Call& call, Scratch& scratch) {
  const auto [tag, ticket, divisor, urgency] = call;
  ShmChannel::Turn turn(*group_->shm, ticket);
  group_->guard->check_usable("all_reduce");
  if (flat.numel() == 0) return;
  check_ordered_type(flat.scalar_type());
  if (group_->size() == 1) return ordered_mean({flat}, divisor, flat);
  if (GroupTeam* team = turn.team([&] { return form_group_team(*group_, gloo_, tag); })) {
    team->set_busy_core(urgency == Urgency::overlap);
    return team->all_reduce(flat.mutable_data_ptr(), flat.numel(),
                            {.type = *element_type(flat.scalar_type()), .divisor = divisor});
  }
  turn.end();  // messages carry tags and may pass each other
  const bool small = static_cast<std::int64_t>(flat.nbytes()) <= kSmallBytes;
  if (small && group_->size() == 2) {
    exchange_in_turn(flat, tag, divisor, scratch);
  } else if (small) {
    exchange_all(flat, tag, divisor, scratch);
  } else {
    exchange_shards(flat, tag, divisor, scratch);
  }
}

// Two ranks, one after the other. Sending and receiving at the same time would be a message
// earlier, but then Gloo's own thread and this one fight over the connection: on two busy cores a
// step took 0.6 ms or 3, by chance.
void OrderedReduction::exchange_in_turn(const at::Tensor& flat, int tag, double divisor,
                                        Scratch& scratch) {
  const int peer = 1 - group_->rank;
  const at::Tensor theirs = scratch.like(flat, 0);
  Messages received(gloo_, tag), sent(gloo_, tag);
  received.receive(theirs, peer);
  if (group_->rank == 0) {
    sent.send(flat, peer);
    received.wait();
    sent.wait();
    ordered_mean({flat, theirs}, divisor, flat);
  } else {
    received.wait();
    sent.send(flat, peer);
    sent.wait();
    ordered_mean({theirs, flat}, divisor, flat);
  }
}

// Everyone sends everything to everyone and adds.
void OrderedReduction::exchange_all(const at::Tensor& flat, int tag, double divisor,
                                    Scratch& scratch) {
  const int size = group_->size(), rank = group_->rank;
  Messages messages(gloo_, tag);
  std::vector<at::Tensor> slots;
  // Receives first, so that the peers' data finds its place waiting.
  for (int peer = 0; peer < size; ++peer) {
    slots.push_back(peer == rank ? flat : scratch.like(flat, peer));
    if (peer != rank) messages.receive(slots[peer], peer);
  }
  for (int step = 1; step < size; ++step) messages.send(flat, (rank + step) % size);
  messages.wait();  // the own tensor has been sent, too, and may be overwritten
  ordered_mean(slots, divisor, flat);
}

// Each rank adds one shard of every segment and sends the result to all.
void OrderedReduction::exchange_shards(const at::Tensor& flat, int tag, double divisor,
                                       Scratch& scratch) {
  const int size = group_->size(), rank = group_->rank;
  const std::int64_t count = flat.numel();
  const std::int64_t segment =
      std::min<std::int64_t>(count, kPieceBytes / flat.element_size() * size);
  const std::int64_t segments = (count + segment - 1) / segment;
  const auto shard = [&](std::int64_t index, int owner) {
    const std::int64_t begin = index * segment, end = std::min(count, begin + segment);
    return piece_of(flat, boundary(begin, end, size, owner), boundary(begin, end, size, owner + 1));
  };

  // Two tags: contributions of a later segment may overtake results of an earlier one.
  const int result_tag = tag + 1;
  struct InFlight {
    Messages messages;
    std::vector<at::Tensor> slots;
  };
  std::deque<InFlight> in_flight;
  const auto start = [&](std::int64_t index) {
    InFlight next{.messages = Messages(gloo_, tag), .slots = {}};
    const at::Tensor own = shard(index, rank);
    const int first_buffer = static_cast<int>(index % kPiecesInFlight) * size;
    for (int peer = 0; peer < size; ++peer) {
      next.slots.push_back(peer == rank ? own : scratch.like(own, first_buffer + peer));
      if (peer != rank) next.messages.receive(next.slots[peer], peer);
    }
    for (int step = 1; step < size; ++step) {
      const int peer = (rank + step) % size;
      next.messages.send(shard(index, peer), peer);
    }
    in_flight.push_back(std::move(next));
  };

  Messages results(gloo_, result_tag);
  std::int64_t started = 0;
  for (std::int64_t done = 0; done < segments; ++done) {
    while (started < segments && started < done + kPiecesInFlight) start(started++);
    InFlight current = std::move(in_flight.front());
    in_flight.pop_front();
    current.messages.wait();
    const at::Tensor own = shard(done, rank);
    ordered_mean(current.slots, divisor, own);
    for (int step = 1; step < size; ++step) {
      const int peer = (rank + step) % size;
      results.receive(shard(done, peer), peer);
      results.send(own, peer);
    }
  }
  results.wait();
}

void OrderedReduction::enqueue(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (!thread_.joinable()) thread_ = std::thread([this] { run_tasks(); });
  }
  changed_.notify_one();
}

void OrderedReduction::run_tasks() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // releases the tensors outside the lock
    lock.lock();
  }
}

// NCCL orders operations by itself on streams, so everything is queued at once, on a stream beside
// the one that computes.
FuturePtr OrderedReduction::mean_on_device(const at::Tensor& tensor) {
  const int size = group_->size();
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  const c10::Stream compute = device.getStream(tensor.device());
  const c10::Stream side = device.getStreamFromGlobalPool(tensor.device(), /*isHighPriority=*/true);
  c10::Event ready(tensor.device().type());
  ready.record(compute);
  side.wait(ready);

  const FuturePtr future = make_tensor_future(tensor);
  const c10::StreamGuard on_side(side);
  const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  const at::Tensor flat = real.view({-1});
  const std::int64_t shard = (flat.numel() + size - 1) / size;
  at::Tensor mine = at::empty({shard * size}, flat.options());
  mine.narrow(0, 0, flat.numel()).copy_(flat);
  mine.narrow(0, flat.numel(), shard * size - flat.numel()).zero_();
  at::Tensor theirs = at::empty_like(mine);
  std::vector<std::int64_t> equal;
  process_group_->alltoall_base(theirs, mine, equal, equal)->wait();

  const bool narrow_type = flat.scalar_type() == at::kBFloat16 || flat.scalar_type() == at::kHalf;
  const at::Tensor slots =
      narrow_type ? theirs.view({size, shard}).to(at::kFloat) : theirs.view({size, shard});
  at::Tensor sum = slots.select(0, 0).clone();
  for (int slot = 1; slot < size; ++slot) sum.add_(slots.select(0, slot));
  // By a tensor: CUDA divides by a number as a product with its reciprocal, which rounds otherwise.
  const at::Tensor divisor = at::full({}, divisor_, sum.options());
  at::Tensor result = sum.div_(divisor).to(flat.scalar_type());
  process_group_->_allgather_base(mine, result)->wait();
  flat.copy_(mine.narrow(0, 0, flat.numel()));
  future->markCompleted(tensor);  // records the side stream, which the consumer will wait for
  return future;
}

}  // namespace lockstep

#pragma GCC diagnostic pop
