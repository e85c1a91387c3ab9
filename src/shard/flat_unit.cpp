#include "shard/flat_unit.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/StorageImpl.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

std::vector<std::int64_t> sizes_of(const std::vector<WalkedTensor>& parameters) {
  std::vector<std::int64_t> sizes;
  for (const WalkedTensor& each : parameters) sizes.push_back(each.tensor.numel());
  return sizes;
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.storage().nbytes()) : 0;
}

}  // namespace

FlatUnit::FlatUnit(std::string name, std::vector<WalkedTensor> parameters, ShardExchange& exchange,
                   const ShardedOptions& options)
    : name_(std::move(name)),
      parameters_(std::move(parameters)),
      exchange_(exchange),
      options_(options),
      layout_(sizes_of(parameters_), exchange.ranks(), exchange.replicas()),
      sums_(parameters_.size()),
      seen_(parameters_.size(), false),
      taken_(parameters_.size(), false) {
  const c10::AutoGradMode no_graph(false);
  const int part = exchange_.part();
  const bool deferred = parameters_.front().tensor.is_meta();
  const at::TensorOptions memory = parameters_.front().tensor.detach().options().device(
      deferred ? options_.device : parameters_.front().tensor.device());
  // Memory that nobody touches costs nothing, and this is given up below.
  whole_ = deferred && keeps_parts_only() ? at::empty({layout_.length()}, memory)
                                          : at::zeros({layout_.length()}, memory);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i].tensor;
    const at::Tensor place = flat(i, whole_).view(parameter.sizes());
    if (deferred) {  // set_data() keeps the kind of a tensor
      parameter.unsafeGetTensorImpl()->shallow_copy_from(place.getIntrusivePtr());
    } else {
      place.copy_(parameter.detach());
      parameter.set_data(place);
    }
  }
  if (options_.init_sync && !deferred) exchange_.group().broadcast(whole_);

  shard_ = whole_.narrow(0, part * layout_.shard_length(), layout_.shard_length());
  const at::ScalarType computed = options_.gather_type.value_or(whole_.scalar_type());
  const bool offloads = options_.offload_optimizer && !whole_.is_cpu();
  if (deferred && keeps_parts_only()) {
    shard_ = at::zeros({layout_.shard_length()}, offloads ? memory.device(at::kCPU) : memory);
  } else if (offloads) {
    shard_ = shard_.to(at::kCPU);
  } else if (keeps_parts_only() || computed != whole_.scalar_type()) {
    shard_ = shard_.clone();
  }
  if (computed != whole_.scalar_type()) {
    whole_ = at::empty({layout_.length()}, whole_.options().dtype(computed));
    point_at(whole_);
    is_current_ = false;
  }
  for (const FlatLayout::Piece& piece : layout_.pieces(part)) {
    pieces_.push_back({.name = parameters_[piece.parameter].name,
                       .tensor = shard_.narrow(0, piece.at, piece.count).detach()});
    pieces_.back().tensor.set_requires_grad(true);
  }
  release();
}

at::Tensor FlatUnit::flat(std::size_t parameter, const at::Tensor& buffer) const {
  return buffer.narrow(0, layout_.offset(parameter), layout_.size(parameter));
}

// Not by set_data(), which would give a parameter of another type a new accumulator of gradients,
// and the one there is has been told whom to call.
void FlatUnit::point_at(const at::Tensor& buffer) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].tensor;
    const at::Tensor place = flat(i, buffer).view(parameter.sizes());
    parameter.unsafeGetTensorImpl()->shallow_copy_from(place.getIntrusivePtr());
  }
}

void FlatUnit::allocate() {
  c10::StorageImpl& storage = *whole_.storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<std::size_t>(layout_.length()) * whole_.element_size();
  if (storage.nbytes() == bytes) return;
  storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  storage.set_nbytes(bytes);
}

void FlatUnit::fetch() {
  if (is_current_ || is_fetching_) return;
  const c10::AutoGradMode no_graph(false);
  allocate();
  sent_ = keeps_parts_only() && !converts()
              ? shard_
              : shard_.to(whole_.options(), /*non_blocking=*/false, /*copy=*/true);
  fetching_ = exchange_.gather(whole_, sent_);
  is_fetching_ = true;
}

void FlatUnit::await() {
  fetch();
  if (!is_fetching_) return;
  is_fetching_ = false;
  std::exchange(fetching_, Work()).wait();
  sent_ = at::Tensor();
  is_current_ = true;
}

void FlatUnit::release() {
  if (!keeps_parts_only()) return;
  if (is_fetching_) await();  // it writes into the memory
  c10::StorageImpl& storage = *whole_.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, whole_.device()));
  storage.set_nbytes(0);
  is_current_ = false;
}

void FlatUnit::outdate() {
  release();
  is_current_ = false;
}

void FlatUnit::show() {
  if (!converts_type()) return await();
  const c10::AutoGradMode no_graph(false);
  const at::Tensor part = shard_.to(whole_.device());
  const at::Tensor all = at::empty({layout_.length()}, part.options());
  exchange_.gather(all, part).wait();
  for (const WalkedTensor& each : parameters_) hidden_.push_back(each.tensor.detach());
  point_at(all);
}

void FlatUnit::hide() {
  if (!converts_type()) return release();
  for (std::size_t i = 0; i < hidden_.size(); ++i) {
    parameters_[i].tensor.unsafeGetTensorImpl()->shallow_copy_from(hidden_[i].getIntrusivePtr());
  }
  hidden_.clear();
}

const at::Tensor& FlatUnit::gradient_buffer() {
  if (!gradients_.defined()) {
    const at::ScalarType type = options_.reduce_type.value_or(whole_.scalar_type());
    gradients_ = at::empty({layout_.length()}, whole_.options().dtype(type));
  }
  return gradients_;
}

void FlatUnit::keep_whole() {
  show();
  options_.stage = ShardStage::gradients;  // nothing is released any more
}

bool FlatUnit::note_gradient(std::size_t parameter, bool take) {
  if (!seen_[parameter]) {
    seen_[parameter] = true;
    ++seen_count_;
  }
  const c10::AutoGradMode no_graph(false);
  at::Tensor& gradient = parameters_[parameter].tensor.mutable_grad();
  at::Tensor& sum = sums_[parameter];
  // Several in a row are added in the parts' type: in a narrow one small ones would be lost.
  if (converts_type() && gradient.defined() && (!take || sum.defined())) {
    sum = sum.defined() ? sum.add_(gradient) : gradient.to(shard_.scalar_type());
    gradient = at::Tensor();
  }
  const at::Tensor found = sum.defined() ? sum : gradient;
  if (take && found.defined()) {
    put_gradient(parameter, found.reshape({-1}));
    gradient = sum = at::Tensor();
    taken_[parameter] = true;
  }
  return seen_count_ == parameters_.size();
}

// Without a gradient: zeros.
void FlatUnit::put_gradient(std::size_t parameter, const at::Tensor& gradient) {
  const std::int64_t first = layout_.offset(parameter);
  for (const auto& each : layout_.in_reduction(first, first + layout_.size(parameter))) {
    const at::Tensor place = gradient_buffer().narrow(0, each.at, each.count);
    if (gradient.defined()) {
      place.copy_(gradient.narrow(0, each.begin - first, each.count));
    } else {
      place.zero_();
    }
  }
}

void FlatUnit::start_mean() {
  const c10::AutoGradMode no_graph(false);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    // What an earlier backward without a reduction has left, and this one did not reach.
    const bool left = parameters_[i].tensor.grad().defined() || sums_[i].defined();
    if (!taken_[i] && left) note_gradient(i, /*take=*/true);
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!taken_[i]) put_gradient(i, at::Tensor());
  }
  for (const FlatLayout::Gap& gap : layout_.gaps()) {
    for (const auto& each : layout_.in_reduction(gap.begin, gap.end)) {
      gradients_.narrow(0, each.at, each.count).zero_();
    }
  }
  mean_ = exchange_.mean(gradients_, at::empty({layout_.share_length()}, gradients_.options()));
}

void FlatUnit::finish_mean() {
  if (!mean_) return;
  const c10::AutoGradMode no_graph(false);
  const at::Tensor mean = exchange_.finish(*mean_).to(shard_.options());
  const auto pieces = layout_.pieces(exchange_.part());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const at::Tensor part = mean.narrow(0, pieces[i].at, pieces[i].count);
    at::Tensor& gradient = pieces_[i].tensor.mutable_grad();
    if (gradient.defined()) {
      gradient.add_(part);
    } else {
      gradient = part;
      if (options_.peer_copies) mean_gradient_ = mean;
    }
  }
  mean_.reset();
  if (options_.stage != ShardStage::optimizer) gradients_ = at::Tensor();
}

at::Tensor FlatUnit::part_gradient() {
  const c10::AutoGradMode no_graph(false);
  const auto places = layout_.pieces(exchange_.part());
  if (!mean_gradient_.defined()) mean_gradient_ = at::zeros_like(shard_);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const at::Tensor& gradient = pieces_[i].tensor.grad();
    if (!gradient.defined()) {
      throw InvalidArgument(concat("ShardedDataParallel: the part of '", pieces_[i].name,
                                   "' has no gradient to send to its copy"));
    }
    const at::Tensor place = mean_gradient_.narrow(0, places[i].at, places[i].count);
    // One that somebody has put in place of the mean lies elsewhere.
    if (gradient.const_data_ptr() != place.const_data_ptr()) place.copy_(gradient);
  }
  return mean_gradient_;
}

void FlatUnit::drop_transfers() {
  fetching_ = Work();
  is_fetching_ = false;
  sent_ = at::Tensor();
  mean_.reset();
  gradients_ = at::Tensor();
  if (!hidden_.empty()) hide();
  outdate();
}

void FlatUnit::forget_backward() {
  seen_.assign(seen_.size(), false);
  taken_.assign(taken_.size(), false);
  seen_count_ = 0;
}

void FlatUnit::zero_grad() {
  mean_gradient_ = at::Tensor();
  for (const NamedParameter& piece : pieces_) piece.tensor.mutable_grad() = at::Tensor();
  for (const WalkedTensor& each : parameters_) each.tensor.mutable_grad() = at::Tensor();
  sums_.assign(sums_.size(), at::Tensor());
}

std::int64_t FlatUnit::parameter_bytes() const {
  const std::int64_t sent = sent_.defined() && !sent_.is_alias_of(shard_) ? bytes_of(sent_) : 0;
  return bytes_of(whole_) + (shard_.is_alias_of(whole_) ? 0 : bytes_of(shard_)) + sent;
}

std::int64_t FlatUnit::gradient_bytes() const {
  std::int64_t bytes = bytes_of(gradients_);
  if (mean_) bytes += bytes_of(mean_->share) + bytes_of(mean_->received);
  for (const WalkedTensor& each : parameters_) bytes += bytes_of(each.tensor.grad());
  for (const at::Tensor& sum : sums_) bytes += bytes_of(sum);
  // The parts' gradients share the memory of one mean.
  for (const NamedParameter& piece : pieces_) {
    if (!piece.tensor.grad().defined()) continue;
    bytes += bytes_of(piece.tensor.grad());
    break;
  }
  return bytes;
}

}  // namespace lockstep
