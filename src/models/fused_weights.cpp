#include "models/fused_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "kernels/cast.h"
#include "models/fused_ops.h"

namespace lockstep {
namespace {

// Where a weight begins in the buffer: kernels read 16 bytes at a time, products like more.
constexpr std::int64_t kAlignment = 128;

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::vector<at::Tensor> all_of(const Gpt2Weights& weights) {
  std::vector<at::Tensor> all = {weights.wte, weights.wpe};
  for (const BlockWeights& block : weights.blocks) {
    for (const at::Tensor& weight : block.list()) all.push_back(weight);
  }
  all.push_back(weights.ln_f.weight);
  all.push_back(weights.ln_f.bias);
  if (!weights.is_tied()) all.push_back(weights.lm_head);
  return all;
}

}  // namespace

void FusedWeights::refresh(const Gpt2Weights& weights) {
  std::vector<const void*> sources;
  for (const at::Tensor& weight : all_of(weights)) sources.push_back(weight.const_data_ptr());
  if (sources != sources_) {
    place(weights);
    sources_ = std::move(sources);
  }
  if (KeptCopies::current() == nullptr || !is_current() || !is_written()) cast();
}

void FusedWeights::refresh_stale() {
  if (!is_current()) cast();
}

bool FusedWeights::is_current() const {
  return std::ranges::all_of(copies_, [](const auto& copy) { return copy->is_current(); });
}

bool FusedWeights::is_written() const {
  return std::ranges::all_of(copies_, [](const auto& copy) { return copy->is_written; });
}

void FusedWeights::cast() {
  kernels::cast_to_bf16(static_cast<const kernels::CastPart*>(parts_.const_data_ptr()), part_count_,
                        pieces_, fused::stream());
  for (const auto& copy : copies_) {
    copy->mark_current();
    copy->is_written = false;
  }
}

void FusedWeights::place(const Gpt2Weights& weights) {
  const std::vector<at::Tensor> all = all_of(weights);
  const std::int64_t vocabulary = weights.head().size(0);
  const std::int64_t padding = rounded_up(vocabulary, kRowMultiple) - vocabulary;
  std::int64_t size = 0;
  for (const at::Tensor& weight : all) {
    const bool is_head = weight.is_same(weights.head());
    size += rounded_up(weight.numel() + (is_head ? padding * weight.size(1) : 0), kAlignment);
  }
  flat_ = at::zeros({size}, weights.wte.options().dtype(at::kBFloat16));

  std::vector<at::Tensor> copies;
  std::vector<kernels::CastPart> parts;
  std::int64_t at = 0;
  for (const at::Tensor& weight : all) {
    const bool is_head = weight.is_same(weights.head());
    const std::int64_t extra = is_head ? padding * weight.size(1) : 0;
    if (is_head) {
      head_ = flat_.narrow(0, at, weight.numel() + extra).view({vocabulary + padding, -1});
    }
    copies.push_back(flat_.narrow(0, at, weight.numel()).view(weight.sizes()));
    parts.push_back(
        {.from = fused::floats(weight), .to = fused::bits(copies.back()), .count = weight.numel()});
    at += rounded_up(weight.numel() + extra, kAlignment);
  }

  part_count_ = static_cast<int>(parts.size());
  pieces_ = kernels::number_pieces(parts.data(), part_count_);
  const auto bytes = static_cast<std::int64_t>(parts.size() * sizeof(kernels::CastPart));
  const at::Tensor host = at::empty({bytes}, at::kByte);
  std::memcpy(host.data_ptr(), parts.data(), static_cast<std::size_t>(bytes));
  parts_ = host.to(flat_.device());

  copies_.clear();
  for (std::size_t i = 0; i < all.size(); ++i) {
    copies_.push_back(
        std::make_shared<WeightCopy>(WeightCopy{.weight = all[i], .copy = copies[i]}));
    announce_copy(copies_.back());
  }

  std::size_t next = 0;
  const auto take = [&] { return copies.at(next++); };
  wte_ = take();
  wpe_ = take();
  blocks_.clear();
  for (std::size_t i = 0; i < weights.blocks.size(); ++i) {
    FusedBlockWeights block;
    for (at::Tensor* each :
         {&block.ln_1, &block.ln_1_bias, &block.qkv, &block.qkv_bias, &block.projection,
          &block.projection_bias, &block.ln_2, &block.ln_2_bias, &block.up, &block.up_bias,
          &block.down, &block.down_bias}) {
      *each = take();
    }
    blocks_.push_back(std::move(block));
  }
  ln_f_ = take();
  ln_f_bias_ = take();
}

}  // namespace lockstep
