#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include "lockstep/rpc.h"

namespace lockstep::rpc {
namespace {

// Types whose numbers are those of torch.save's files: they do not change between versions.
constexpr std::array kTypes = {at::kByte,
                               at::kChar,
                               at::kShort,
                               at::kInt,
                               at::kLong,
                               at::kHalf,
                               at::kFloat,
                               at::kDouble,
                               at::kComplexHalf,
                               at::kComplexFloat,
                               at::kComplexDouble,
                               at::kBool,
                               at::kBFloat16,
                               at::kFloat8_e5m2,
                               at::kFloat8_e4m3fn,
                               at::kFloat8_e5m2fnuz,
                               at::kFloat8_e4m3fnuz,
                               at::kUInt16,
                               at::kUInt32,
                               at::kUInt64};
constexpr std::int8_t kUndefined = -1;
constexpr std::uint8_t kMaxDimensions = 64;

// Bytes of a tensor of that shape; refuses what overflows.
std::size_t bytes_of(const std::vector<std::int64_t>& sizes, std::size_t element_bytes) {
  std::uint64_t total = element_bytes;
  for (const std::int64_t size : sizes) {
    if (size < 0) Reader::fail("a tensor with a negative size");
    if (size != 0 && total > (std::uint64_t{1} << 50) / static_cast<std::uint64_t>(size)) {
      Reader::fail("a tensor is too large");
    }
    total *= static_cast<std::uint64_t>(size);
  }
  return total;
}

}  // namespace

void Codec<at::Tensor>::write(Writer& out, const at::Tensor& value) {
  if (!value.defined()) {
    out.number(kUndefined);
    return;
  }
  if (!value.device().is_cpu() || value.layout() != at::kStrided ||
      std::ranges::find(kTypes, value.scalar_type()) == kTypes.end()) {
    throw InvalidArgument(concat("rpc: a tensor of type ", c10::toString(value.scalar_type()),
                                 " on ", value.device().str(),
                                 " cannot be sent; make it a dense one on the CPU (.cpu())"));
  }
  const at::Tensor plain = value.detach().resolve_conj().resolve_neg().contiguous();
  out.number(static_cast<std::int8_t>(plain.scalar_type()));
  out.number(static_cast<std::uint8_t>(plain.dim()));
  for (const std::int64_t size : plain.sizes()) out.number(size);
  auto owner = std::make_shared<at::Tensor>(plain);
  out.blob({.data = static_cast<std::byte*>(plain.data_ptr()),
            .bytes = plain.nbytes(),
            .owner = std::move(owner)});
}

at::Tensor Codec<at::Tensor>::read(Reader& in) {
  const auto number = in.number<std::int8_t>();
  if (number == kUndefined) return {};
  const auto type = static_cast<at::ScalarType>(number);
  if (std::ranges::find(kTypes, type) == kTypes.end()) Reader::fail("a tensor of an unknown type");
  const auto dimensions = in.number<std::uint8_t>();
  if (dimensions > kMaxDimensions) Reader::fail("a tensor has too many dimensions");
  std::vector<std::int64_t> sizes(dimensions);
  for (std::int64_t& size : sizes) size = in.number<std::int64_t>();
  Blob blob = in.blob();
  if (bytes_of(sizes, c10::elementSize(type)) != blob.bytes) {
    Reader::fail("a tensor has other bytes than its shape says");
  }
  if (blob.bytes == 0) return at::empty(sizes, type);
  return at::from_blob(
      blob.data, sizes, [owner = std::move(blob.owner)](void*) mutable { owner.reset(); },
      at::TensorOptions(type));
}

at::Tensor shared_tensor(Agent& agent, const at::Tensor& values) {
  Blob memory = agent.shared_memory(std::max<std::size_t>(values.nbytes(), 1));
  at::Tensor result = at::from_blob(
      memory.data, values.sizes(),
      [owner = std::move(memory.owner)](void*) mutable { owner.reset(); },
      at::TensorOptions(values.scalar_type()));
  result.copy_(values.detach());
  return result;
}

}  // namespace lockstep::rpc
