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

at::Tensor empty_like_described(const Described& tensor) {
  if (tensor.presence == Presence::absent) return {};
  return at::empty_strided(tensor.sizes, tensor.strides, at::TensorOptions(tensor.type));
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
  const auto [last, first_time] = last_.try_emplace(parcel.micro_batch, description);
  if (!first_time && (is_new || last->second != description)) {
    Tensors unlike;
    for (const Described& each : decode(last->second)) unlike.push_back(empty_like_described(each));
    post_payload(unlike, parcel.micro_batch);
    last->second = description;
  }
  if (is_new) {
    ++descriptions_sent_;
    const at::Tensor numbers =
        at::empty({static_cast<std::int64_t>(description.size())}, at::kLong);
    std::ranges::copy(description, numbers.mutable_data_ptr<std::int64_t>());
    post(numbers, parcel.micro_batch);
  }
  post_payload(payload, parcel.micro_batch);
}

void TensorSender::post_payload(const Tensors& tensors, std::int64_t micro_batch) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.numel() > 0) post(as_bytes(tensor), micro_batch);
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
  next_ = 0;
  open();
}

TensorReceiver::Arriving TensorReceiver::begin_to_receive(const Description& description) {
  const at::NoGradGuard no_grad;
  Arriving arriving{.description = description, .works = {}, .parcel = {}};
  for (const Described& each : decode(description)) {
    at::Tensor tensor = empty_like_described(each);
    if (tensor.defined() && tensor.numel() > 0) {
      arriving.works.push_back(end_.group.irecv(
          as_bytes(tensor), {.peer = end_.peer, .tag = static_cast<int>(end_.tag)}));
    }
    arriving.parcel.tensors.push_back(std::move(tensor));
  }
  return arriving;
}

// Asks for the next envelope, and for what is likely to follow it.
void TensorReceiver::open() {
  if (open_ || expected_ == 0) return;
  --expected_;
  open_ = true;
  envelope_ = at::empty({kFields}, at::kLong);
  envelope_work_ =
      end_.group.irecv(envelope_, {.peer = end_.peer, .tag = static_cast<int>(end_.tag)});
  counted_on_.reset();
  if (const auto last = last_.find(next_); last != last_.end()) {
    counted_on_ = begin_to_receive(last->second);
  }
  ++next_;
}

// The envelope has come, or is waited for; the rest left together with it.
void TensorReceiver::read_envelope() {
  const at::NoGradGuard no_grad;
  envelope_work_.wait();
  open_ = false;
  const auto* fields = envelope_.const_data_ptr<std::int64_t>();
  LOCKSTEP_CHECK(fields[kMark] == kEnvelopeMark && fields[kMicroBatch] == next_ - 1, fields[kMark],
                 ", ", fields[kMicroBatch], ", ", next_);
  Description description;
  if (fields[kLength] == 0) description = known_.at(fields[kDescription]);
  const bool as_before = counted_on_ && counted_on_->description == description;
  if (counted_on_ && !as_before) {
    for (Work& work : counted_on_->works) work.wait();
    counted_on_.reset();
  }
  if (fields[kLength] > 0) {
    description = receive_description(fields[kDescription], fields[kLength]);
    check_description(description, fields[kMicroBatch]);
  }
  last_[next_ - 1] = description;
  arriving_.push_back(as_before ? std::move(*counted_on_) : begin_to_receive(description));
  arriving_.back().parcel.micro_batch = fields[kMicroBatch];
  arriving_.back().parcel.rows = fields[kRows];
}

Description TensorReceiver::receive_description(std::int64_t number, std::int64_t length) {
  const at::Tensor numbers = at::empty({length}, at::kLong);
  end_.group.recv(numbers, {.peer = end_.peer, .tag = static_cast<int>(end_.tag)});
  const auto* first = numbers.const_data_ptr<std::int64_t>();
  if (number == 0) known_.clear();
  known_.emplace_back(first, first + length);
  return known_.back();
}

void TensorReceiver::check_description(const Description& description,
                                       std::int64_t micro_batch) const {
  const auto now = decode(description), before = decode(known_.front());
  if (can_follow(before, now)) return;
  throw InvalidArgument(concat("Pipeline: ", end_.who, ": micro-batch ", micro_batch, " brings ",
                               text_of(now), "; before there were ", text_of(before),
                               ". Number, type and dimensions must stay, sizes may change"));
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
