#include "lockstep/compression.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "ddp/compression_impl.h"
#include "ddp/module_walk.h"
#include "lockstep/error.h"
#include "lockstep/state.h"

namespace lockstep {
namespace {

constexpr const char* kErrorKey = "error.";
constexpr const char* kQKey = "q.";

void check_compression(const CompressionOptions& options) {
  if (std::holds_alternative<Int8Options>(options)) return;
  const auto* wanted = std::get_if<PowerSGDOptions>(&options);
  if (wanted == nullptr) {
    throw InvalidArgument(
        "GradientCompression: the options are neither Int8Options nor PowerSGDOptions; register "
        "the others with register_comm_hook(CommHook)");
  }
  if (wanted->matrix_approximation_rank < 1) {
    throw InvalidArgument(concat("PowerSGD: matrix_approximation_rank is ",
                                 wanted->matrix_approximation_rank, "; it must be 1 or more"));
  }
  if (wanted->start_powerSGD_iter < 0 || !(wanted->min_compression_rate >= 0) ||
      !(wanted->orthogonalization_epsilon >= 0)) {
    throw InvalidArgument(concat("PowerSGD: start_powerSGD_iter ", wanted->start_powerSGD_iter,
                                 ", min_compression_rate ", wanted->min_compression_rate,
                                 " or orthogonalization_epsilon ",
                                 wanted->orthogonalization_epsilon, " is negative"));
  }
}

std::string error_key(int slot) {
  return kErrorKey + std::to_string(slot);
}

const at::Tensor& fitting(const std::string& name, const at::Tensor& tensor, std::int64_t numel) {
  if (tensor.numel() != numel) {
    throw InvalidArgument(concat("compression: '", name, "' of the state has ", tensor.numel(),
                                 " elements, here ", numel, "; it is that of another model"));
  }
  return tensor;
}

}  // namespace

GradientCompression::GradientCompression(const torch::nn::Module& module,
                                         const CompressionOptions& options)
    : impl_(std::make_unique<Impl>()) {
  check_compression(options);
  impl_->options = options;
  impl_->error_feedback = keeps_error(options);
  std::int64_t blocks = 0;
  for (const WalkedTensor& walked : walk_parameters(module, {})) {
    if (!walked.tensor.requires_grad()) continue;
    const std::int64_t numel = walked.tensor.numel();
    impl_->by_tensor[walked.tensor.unsafeGetTensorImpl()] = impl_->entries.size();
    impl_->entries.push_back({.name = walked.name,
                              .shape = walked.tensor.sizes().vec(),
                              .offset = impl_->numel,
                              .numel = numel,
                              .first_block = blocks});
    impl_->numel += numel;
    blocks += (numel + kInt8Block - 1) / kInt8Block;
    impl_->device = walked.tensor.device();
    if (walked.tensor.scalar_type() == at::kDouble) impl_->error_type = at::kDouble;
  }
  impl_->touched.assign(impl_->entries.size(), false);
  impl_->make_errors();
}

GradientCompression::~GradientCompression() = default;

const CompressionOptions& GradientCompression::options() const {
  return impl_->options;
}

const GradientCompression::Place& GradientCompression::place() const {
  return impl_->place;
}

void GradientCompression::set_place(const Place& place) {
  if (place.slot < 0 || place.slot >= place.slots) {
    throw InvalidArgument(
        concat("compression: slot ", place.slot, " is outside [0, ", place.slots, ")"));
  }
  if (place.mirrored) use_transactions();  // the rows of others come before commit()
  const Place before = std::exchange(impl_->place, place);
  if (before.mirrored == place.mirrored && before.slots == place.slots) return;
  impl_->make_errors();
}

void GradientCompression::Impl::make_errors() {
  if (!error_feedback) return;
  const auto type = at::TensorOptions().dtype(error_type).device(device);
  errors = at::zeros({place.mirrored ? place.slots : 1, numel}, type);
  next_errors = at::zeros_like(errors);
  touched.assign(entries.size(), false);
}

at::Tensor GradientCompression::Impl::error_of(std::size_t index) const {
  const Entry& entry = entries[index];
  return errors[row()].narrow(0, entry.offset, entry.numel);
}

void GradientCompression::Impl::remember_error(std::size_t index, const at::Tensor& error) {
  const Entry& entry = entries[index];
  next_errors[row()].narrow(0, entry.offset, entry.numel).copy_(error.reshape({-1}));
  touched[index] = true;
}

// A parameter that was in no bucket keeps what it has.
void GradientCompression::Impl::complete_next_errors() {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!touched[i]) remember_error(i, error_of(i));
  }
}

void GradientCompression::Impl::reduce(const at::Tensor& buffer,
                                       const std::vector<CompressedPiece>& pieces, bool last,
                                       const CompressionLink& link) {
  const at::NoGradGuard no_grad;
  const auto* power_sgd = std::get_if<PowerSGDOptions>(&options);
  if (power_sgd == nullptr) {
    reduce_int8(pieces, link);
  } else if (iteration < power_sgd->start_powerSGD_iter) {
    link.mean(buffer);
    statistics.before += static_cast<double>(buffer.numel());
    statistics.after += static_cast<double>(buffer.numel());
  } else {
    reduce_power_sgd(*power_sgd, pieces, link);
  }
  last_bucket_seen = last;
}

void GradientCompression::use_transactions() {
  impl_->transactional = true;
}

void GradientCompression::commit() {
  const at::NoGradGuard no_grad;
  Impl& self = *impl_;
  if (!self.last_bucket_seen) return;
  if (self.error_feedback) {
    if (std::ranges::count(self.touched, true) > 0) {
      // With a mirror it has been done before the rows were handed round.
      if (!self.place.mirrored) self.complete_next_errors();
      std::swap(self.errors, self.next_errors);
    }
  }
  for (auto& [name, q] : self.next_qs) self.qs[name] = q;
  ++self.iteration;
  abort();
}

void GradientCompression::abort() {
  impl_->touched.assign(impl_->entries.size(), false);
  impl_->next_qs.clear();
  impl_->last_bucket_seen = false;
}

void GradientCompression::mirror(ProcessGroup& group) {
  Impl& self = *impl_;
  if (!self.place.mirrored || !self.error_feedback) return;
  if (group.size() != self.place.slots) {
    throw InvalidArgument(concat("compression: the error memory of ", self.place.slots,
                                 " slots cannot be mirrored by ", group.size(), " ranks"));
  }
  const at::NoGradGuard no_grad;
  if (std::ranges::count(self.touched, true) == 0) return;  // the same on every rank
  self.complete_next_errors();
  const at::Tensor mine = self.next_errors[self.place.slot].clone();
  group.all_gather_into_tensor(self.next_errors.view({-1}), mine);
}

State GradientCompression::state() const {
  const Impl& self = *impl_;
  State state;
  state.values = {{"options", describe_compression(self.options)},
                  {"iteration", self.iteration},
                  {"numel", self.numel}};
  for (const auto& [name, q] : self.qs) state.tensors[kQKey + name] = q;
  if (!self.place.mirrored || !self.error_feedback) return state;
  for (int slot = 0; slot < self.place.slots; ++slot) {
    state.tensors[error_key(slot)] = self.errors[slot];
  }
  return state;
}

State GradientCompression::gather(ProcessGroup& group) const {
  State state = this->state();
  const Impl& self = *impl_;
  if (self.place.mirrored || !self.error_feedback) return state;
  at::Tensor all = at::zeros({group.size(), self.numel}, self.errors.options());
  group.all_gather_into_tensor(all.view({-1}), self.errors[0]);
  for (int rank = 0; rank < group.size(); ++rank) state.tensors[error_key(rank)] = all[rank];
  return state;
}

void GradientCompression::load_state(const State& state) {
  const at::NoGradGuard no_grad;
  Impl& self = *impl_;
  const std::string mine = describe_compression(self.options);
  if (const std::string theirs = state.values.value("options", ""); theirs != mine) {
    throw InvalidArgument(
        concat("compression is ", mine, ", but the state was made with ", theirs));
  }
  std::map<std::string, at::Tensor> qs;
  for (const auto& [name, tensor] : state.tensors) {
    if (name.starts_with(kErrorKey)) fitting(name, tensor, self.numel);
    if (name.starts_with(kQKey)) {
      qs[name.substr(std::string(kQKey).size())] = tensor.to(self.device).clone();
    }
  }
  if (self.error_feedback) {
    for (int slot = 0; slot < self.place.slots; ++slot) {
      const auto found = state.tensors.find(error_key(slot));
      if (found == state.tensors.end()) continue;
      if (self.place.mirrored) self.errors[slot].copy_(found->second);
      if (!self.place.mirrored && slot == self.place.slot) self.errors[0].copy_(found->second);
    }
  }
  self.qs = std::move(qs);
  self.iteration = state.values.at("iteration");
}

GradientCompression::Statistics GradientCompression::statistics() const {
  return impl_->statistics;
}

}  // namespace lockstep
