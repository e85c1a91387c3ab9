#include "lockstep/collate.h"

#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include "lockstep/error.h"

namespace lockstep::detail {
namespace {

std::string named(Indices indices, std::size_t position) {
  return position < indices.size() ? concat("sample ", indices[position])
                                   : concat("sample number ", position, " of the batch");
}

void check_alike(const at::Tensor& tensor, const at::Tensor& first, Indices indices,
                 std::size_t position) {
  if (!tensor.defined()) {
    throw InvalidArgument(concat(named(indices, position), " holds an undefined tensor"));
  }
  const bool same = tensor.sizes() == first.sizes() && tensor.dtype() == first.dtype() &&
                    tensor.device() == first.device();
  if (same) return;
  throw InvalidArgument(
      concat(named(indices, position), " is ", tensor.dtype(), tensor.sizes(), " on ",
             tensor.device(), ", ", named(indices, 0), " in the same batch ", first.dtype(),
             first.sizes(), " on ", first.device(),
             "; samples of a batch must be alike (give the loader a collate function that pads)"));
}

// Its bytes can be copied as they are, and no gradient has to find its way back.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous() &&
         !tensor.requires_grad() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

at::Tensor stack_samples(std::span<const at::Tensor* const> samples, Indices indices) {
  const at::Tensor& first = *samples[0];
  bool plain = true;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    check_alike(*samples[i], first, indices, i);
    plain = plain && is_plain(*samples[i]);
  }
  if (!plain) {
    std::vector<at::Tensor> list;
    list.reserve(samples.size());
    for (const at::Tensor* sample : samples) list.push_back(*sample);
    return at::stack(list);
  }
  // For small samples at::stack costs several times what the copy does.
  std::vector<std::int64_t> shape{std::ssize(samples)};
  shape.insert(shape.end(), first.sizes().begin(), first.sizes().end());
  at::Tensor batch = at::empty(shape, first.options());
  const std::size_t bytes = first.nbytes();
  auto* out = static_cast<std::byte*>(batch.mutable_data_ptr());
  for (const at::Tensor* sample : samples) {
    if (bytes != 0) std::memcpy(out, sample->const_data_ptr(), bytes);
    out += bytes;
  }
  return batch;
}

at::Tensor make_batch_tensor(std::initializer_list<std::int64_t> shape, at::ScalarType type) {
  return at::empty(at::IntArrayRef(shape), at::TensorOptions(type));
}

void throw_unequal(Indices indices, std::size_t position, const std::string& what,
                   std::size_t length, std::size_t first_length) {
  throw InvalidArgument(concat(named(indices, position), " has ", length, " ", what, ", ",
                               named(indices, 0), " in the same batch ", first_length,
                               "; samples of a batch must be alike"));
}

void throw_missing_key(Indices indices, std::size_t position, const std::string& key) {
  throw InvalidArgument(concat(named(indices, position), " has no key \"", key, "\", which ",
                               named(indices, 0), " in the same batch has"));
}

}  // namespace lockstep::detail
