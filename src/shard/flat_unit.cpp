#include "shard/flat_unit.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
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
      layout_(sizes_of(parameters_), exchange.group().size()),
      seen_(parameters_.size(), false),
      taken_(parameters_.size(), false) {
  const c10::AutoGradMode no_graph(false);
  const int rank = exchange_.group().rank();
  whole_ = at::zeros({layout_.length()}, parameters_.front().tensor.detach().options());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i].tensor;
    const at::Tensor place = flat(i, whole_).view(parameter.sizes());
    place.copy_(parameter.detach());
    parameter.set_data(place);
  }
  if (options_.init_sync) exchange_.group().broadcast(whole_);

  shard_ = whole_.narrow(0, rank * layout_.shard_length(), layout_.shard_length());
  if (keeps_parts_only()) shard_ = shard_.clone();
  for (const FlatLayout::Piece& piece : layout_.pieces(rank)) {
    pieces_.push_back({.name = parameters_[piece.parameter].name,
                       .tensor = shard_.narrow(0, piece.at, piece.count).detach()});
    pieces_.back().tensor.set_requires_grad(true);
  }
  release();
}

at::Tensor FlatUnit::flat(std::size_t parameter, const at::Tensor& buffer) const {
  return buffer.narrow(0, layout_.offset(parameter), layout_.size(parameter));
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
  sent_ = keeps_parts_only() ? shard_ : shard_.clone();
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

bool FlatUnit::note_gradient(std::size_t parameter, bool take) {
  if (!seen_[parameter]) {
    seen_[parameter] = true;
    ++seen_count_;
  }
  at::Tensor& gradient = parameters_[parameter].tensor.mutable_grad();
  if (take && gradient.defined()) {
    const c10::AutoGradMode no_graph(false);
    if (!gradients_.defined()) gradients_ = at::empty({layout_.length()}, whole_.options());
    flat(parameter, gradients_).copy_(gradient.reshape({-1}));
    gradient = at::Tensor();
    taken_[parameter] = true;
  }
  return seen_count_ == parameters_.size();
}

void FlatUnit::start_mean() {
  const c10::AutoGradMode no_graph(false);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    // What an earlier backward without a reduction has left, and this one did not reach.
    if (!taken_[i] && parameters_[i].tensor.grad().defined()) note_gradient(i, /*take=*/true);
  }
  if (!gradients_.defined()) gradients_ = at::empty({layout_.length()}, whole_.options());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!taken_[i]) flat(i, gradients_).zero_();
  }
  for (const FlatLayout::Gap& gap : layout_.gaps()) {
    gradients_.narrow(0, gap.begin, gap.end - gap.begin).zero_();
  }
  mean_ = exchange_.mean(gradients_, at::empty({layout_.shard_length()}, whole_.options()));
}

void FlatUnit::finish_mean() {
  if (!mean_) return;
  const c10::AutoGradMode no_graph(false);
  mean_->finish();
  const auto pieces = layout_.pieces(exchange_.group().rank());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const at::Tensor part = mean_->shard.narrow(0, pieces[i].at, pieces[i].count);
    at::Tensor& gradient = pieces_[i].tensor.mutable_grad();
    if (gradient.defined()) {
      gradient.add_(part);
    } else {
      gradient = part;
    }
  }
  mean_.reset();
  if (options_.stage != ShardStage::optimizer) gradients_ = at::Tensor();
}

void FlatUnit::forget_backward() {
  seen_.assign(seen_.size(), false);
  taken_.assign(taken_.size(), false);
  seen_count_ = 0;
}

std::int64_t FlatUnit::parameter_bytes() const {
  return bytes_of(whole_) + (keeps_parts_only() ? bytes_of(shard_) : 0);
}

std::int64_t FlatUnit::gradient_bytes() const {
  std::int64_t bytes = bytes_of(gradients_) + (mean_ ? bytes_of(mean_->shard) : 0);
  for (const WalkedTensor& each : parameters_) bytes += bytes_of(each.tensor.grad());
  // The parts' gradients share the memory of one mean.
  for (const NamedParameter& piece : pieces_) {
    if (!piece.tensor.grad().defined()) continue;
    bytes += bytes_of(piece.tensor.grad());
    break;
  }
  return bytes;
}

}  // namespace lockstep
