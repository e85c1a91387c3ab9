#include "pipeline/tensor_line.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// What an envelope holds, and the most descriptions that both ends remember.
enum Field { kMark, kDescription, kLength, kMicroBatch, kRows, kFields };
constexpr std::int64_t kEnvelopeMark = 0x70697065;
constexpr std::size_t kMostDescriptions = 256;

enum class Presence : std::int64_t { absent, plain, wants_gradient };

struct Described {
  Presence presence = Presence::absent;
  at::ScalarType type{};
  std::vector<std::int64_t> sizes, strides;
};

Described describe_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {.presence = tensor.requires_grad() ? Presence::wants_gradient : Presence::plain,
          .type = tensor.scalar_type(),
          .sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec()};
}

Description encode(const std::vector<Described>& tensors) {
  Description numbers{static_cast<std::int64_t>(tensors.size())};
  for (const Described& each : tensors) {
    numbers.push_back(static_cast<std::int64_t>(each.presence));
    numbers.push_back(static_cast<std::int64_t>(each.type));
    numbers.push_back(static_cast<std::int64_t>(each.sizes.size()));
    numbers.insert(numbers.end(), each.sizes.begin(), each.sizes.end());
    numbers.insert(numbers.end(), each.strides.begin(), each.strides.end());
  }
  return numbers;
}

std::vector<Described> decode(const Description& numbers) {
  std::vector<Described> tensors(numbers.at(0));
  auto next = numbers.begin() + 1;
  for (Described& each : tensors) {
    each.presence = static_cast<Presence>(*next++);
    each.type = static_cast<at::ScalarType>(*next++);
    const std::int64_t dimensions = *next++;
    each.sizes.assign(next, next + dimensions);
    next += dimensions;
    each.strides.assign(next, next + dimensions);
    next += dimensions;
  }
  return tensors;
}

// As one row of bytes, which every backend can send.
at::Tensor as_bytes(const at::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1}).view(at::kByte);
}

// Without a graph, on the CPU, each element once: what can be sent as it lies in memory. Its layout
// is kept where it can be, because kernels may add up in another order for another one.
at::Tensor packed(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (tensor.layout() != at::kStrided) {
    throw InvalidArgument("Pipeline: a stage gives a sparse tensor; only dense ones can be sent");
  }
  at::Tensor plain = tensor.detach().resolve_conj().resolve_neg();
  if (!plain.is_cpu()) plain = plain.cpu();
  return plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
}

std::string text_of(const std::vector<Described>& tensors) {
  std::string text = concat(tensors.size(), " tensors (");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i > 0) text += ", ";
    if (tensors[i].presence == Presence::absent) {
      text += "none";
    } else {
      text += concat(tensors[i].type, " ", at::IntArrayRef(tensors[i].sizes));
    }
  }
  return text + ")";
}

// Sizes may change from one micro-batch to the next; what a model is made for may not.
bool can_follow(const std::vector<Described>& first, const std::vector<Described>& now) {
  return std::ranges::equal(first, now, [](const Described& a, const Described& b) {
    if (a.presence == Presence::absent || b.presence == Presence::absent) return true;
    return a.type == b.type && a.sizes.size() == b.sizes.size();
  });
}

}  // namespace

void TensorSender::post(const at::Tensor& tensor, std::int64_t micro_batch) {
  const PointToPointOptions to{.peer = end_.peer, .tag = static_cast<int>(end_.tag)};
  leaving_.push_back(
      {.work = end_.group.isend(tensor, to), .tensor = tensor, .micro_batch = micro_batch});
}

void TensorSender::send(const Parcel& parcel) {
  const at::NoGradGuard no_grad;
  std::vector<Described> described;
  Tensors payload;
  for (const at::Tensor& tensor : parcel.tensors) {
    payload.push_back(packed(tensor));
    described.push_back(describe_tensor(payload.back()));
    if (tensor.defined() && tensor.requires_grad()) {
      described.back().presence = Presence::wants_gradient;
    }
  }
  const Description description = encode(described);
  if (known_.size() == kMostDescriptions && !known_.contains(description)) known_.clear();
  const auto [known, is_new] =
      known_.try_emplace(description, static_cast<std::int64_t>(known_.size()));

  const at::Tensor envelope = at::empty({kFields}, at::kLong);
  auto* fields = envelope.mutable_data_ptr<std::int64_t>();
  fields[kMark] = kEnvelopeMark;
  fields[kDescription] = known->second;
  fields[kLength] = is_new ? static_cast<std::int64_t>(description.size()) : 0;
  fields[kMicroBatch] = parcel.micro_batch;
  fields[kRows] = parcel.rows;
  post(envelope, parcel.micro_batch);
  if (is_new) {
    ++descriptions_sent_;
    const at::Tensor numbers =
        at::empty({static_cast<std::int64_t>(description.size())}, at::kLong);
    std::ranges::copy(description, numbers.mutable_data_ptr<std::int64_t>());
    post(numbers, parcel.micro_batch);
  }
  for (const at::Tensor& tensor : payload) {
    if (tensor.defined() && tensor.numel() > 0) post(as_bytes(tensor), parcel.micro_batch);
  }
}

void TensorSender::finish_before(std::int64_t micro_batch) {
  while (!leaving_.empty() && leaving_.front().micro_batch < micro_batch) {
    leaving_.front().work.wait();
    leaving_.pop_front();
  }
}

void TensorSender::finish() {
  for (; !leaving_.empty(); leaving_.pop_front()) leaving_.front().work.wait();
}

void TensorReceiver::expect(int parcels) {
  LOCKSTEP_CHECK(expected_ == 0 && !open_ && arriving_.empty(), expected_);
  expected_ = parcels;
  open();
}

// Asks for the next envelope.
void TensorReceiver::open() {
  if (open_ || expected_ == 0) return;
  --expected_;
  open_ = true;
  envelope_ = at::empty({kFields}, at::kLong);
  envelope_work_ =
      end_.group.irecv(envelope_, {.peer = end_.peer, .tag = static_cast<int>(end_.tag)});
}

// The envelope has come, or is waited for; the rest left together with it.
void TensorReceiver::read_envelope() {
  const at::NoGradGuard no_grad;
  const PointToPointOptions from{.peer = end_.peer, .tag = static_cast<int>(end_.tag)};
  envelope_work_.wait();
  open_ = false;
  const auto* fields = envelope_.const_data_ptr<std::int64_t>();
  LOCKSTEP_CHECK(fields[kMark] == kEnvelopeMark, fields[kMark]);
  if (fields[kLength] > 0) {
    const at::Tensor numbers = at::empty({fields[kLength]}, at::kLong);
    end_.group.recv(numbers, from);
    const auto* first = numbers.const_data_ptr<std::int64_t>();
    if (fields[kDescription] == 0) known_.clear();
    known_.emplace_back(first, first + fields[kLength]);
    const auto now = decode(known_.back()), before = decode(known_.front());
    if (!can_follow(before, now)) {
      throw InvalidArgument(concat("Pipeline: ", end_.who, ": micro-batch ", fields[kMicroBatch],
                                   " brings ", text_of(now), "; before there were ",
                                   text_of(before),
                                   ". Number, type and dimensions must stay, sizes may change"));
    }
  }
  Arriving arriving{
      .description = known_.at(fields[kDescription]),
      .works = {},
      .parcel = {.tensors = {}, .micro_batch = fields[kMicroBatch], .rows = fields[kRows]}};
  for (const Described& each : decode(arriving.description)) {
    at::Tensor tensor;
    if (each.presence != Presence::absent) {
      tensor = at::empty_strided(each.sizes, each.strides, at::TensorOptions(each.type));
      if (tensor.numel() > 0) arriving.works.push_back(end_.group.irecv(as_bytes(tensor), from));
    }
    arriving.parcel.tensors.push_back(std::move(tensor));
  }
  arriving_.push_back(std::move(arriving));
}

void TensorReceiver::poll() {
  while (open_ && envelope_work_.is_completed()) {
    read_envelope();
    open();
  }
}

Parcel TensorReceiver::receive() {
  if (arriving_.empty()) {
    LOCKSTEP_CHECK(open_, "no parcel is expected");
    read_envelope();
    open();
  }
  Arriving arriving = std::move(arriving_.front());
  arriving_.pop_front();
  for (Work& work : arriving.works) work.wait();
  const std::vector<Described> described = decode(arriving.description);
  for (std::size_t i = 0; i < described.size(); ++i) {
    at::Tensor& tensor = arriving.parcel.tensors[i];
    if (!tensor.defined()) continue;
    if (!end_.device.is_cpu()) tensor = tensor.to(end_.device);
    if (described[i].presence == Presence::wants_gradient) tensor.requires_grad_();
  }
  return std::move(arriving.parcel);
}

}  // namespace lockstep
