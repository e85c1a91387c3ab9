#include "models/fused_attention.h"

#include <cstdlib>
#include <string_view>
#include <tuple>

#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "kernels/tile_attention.h"
#include "lockstep/error.h"

namespace lockstep::fused {
namespace {

using kernels::AttentionShape;

// Queries, keys and values of all heads, [batch, heads, tokens, head size], as views of one matrix.
std::array<at::Tensor, 3> heads_of(const at::Tensor& qkv, const AttentionShape& shape) {
  const at::Tensor parts = qkv.view({shape.batch, shape.tokens, 3, shape.heads, shape.head_size});
  return {parts.select(2, 0).transpose(1, 2), parts.select(2, 1).transpose(1, 2),
          parts.select(2, 2).transpose(1, 2)};
}

at::Tensor as_heads(const at::Tensor& rows, const AttentionShape& shape) {
  return rows.view({shape.batch, shape.tokens, shape.heads, shape.head_size}).transpose(1, 2);
}

at::Tensor bytes_beside(const at::Tensor& like, std::int64_t count) {
  return at::empty({count}, like.options().dtype(at::kByte));
}

AttentionBy way_of(kernels::Attention& attention, const AttentionShape& shape) {
  const AttentionChoice choice = attention_choice();
  if (choice == AttentionChoice::aten) return AttentionBy::aten;
  if (choice == AttentionChoice::tiles && kernels::has_tile_attention(shape)) {
    return AttentionBy::tiles;
  }
  if (choice == AttentionChoice::fastest && kernels::suits_tile_attention(shape)) {
    return AttentionBy::tiles;
  }
  return attention.takes(shape) ? AttentionBy::cudnn : AttentionBy::aten;
}

void attend_through_aten(const AttentionShape& shape, const at::Tensor& qkv, Attended& attended) {
  const auto [query, key, value] = heads_of(qkv, shape);
  const auto result = at::_scaled_dot_product_cudnn_attention(
      query, key, value, /*attn_bias=*/{}, /*compute_log_sumexp=*/true, /*dropout_p=*/0,
      /*is_causal=*/true, /*return_debug_mask=*/false, shape.scale);
  attended.log_sum_exp = std::get<1>(result);
  attended.seed = std::get<6>(result);
  attended.offset = std::get<7>(result);
  attended.out = std::get<0>(result).transpose(1, 2).reshape({qkv.size(0), -1});
}

Summed gradient_through_aten(const AttentionShape& shape, const at::Tensor& qkv,
                             const Attended& attended, const at::Tensor& gradient) {
  const auto [query, key, value] = heads_of(qkv, shape);
  const auto [query_gradient, key_gradient, value_gradient] =
      at::_scaled_dot_product_cudnn_attention_backward(
          as_heads(gradient, shape), query, key, value, as_heads(attended.out, shape),
          attended.log_sum_exp, attended.seed, attended.offset, /*attn_bias=*/{}, /*cum_seq_q=*/{},
          /*cum_seq_k=*/{}, shape.tokens, shape.tokens, /*dropout_p=*/0, /*is_causal=*/true,
          shape.scale);
  const auto as_rows = [&](const at::Tensor& heads) {  // a view, as cuDNN lays them out
    return heads.transpose(1, 2).reshape(gradient.sizes());
  };
  return join({as_rows(query_gradient), as_rows(key_gradient), as_rows(value_gradient)});
}

}  // namespace

AttentionChoice attention_choice() {
  static const AttentionChoice choice = [] {
    const char* told = std::getenv("LOCKSTEP_ATTENTION");
    const std::string_view by = told == nullptr ? "auto" : told;
    if (by == "auto") return AttentionChoice::fastest;
    if (by == "cudnn") return AttentionChoice::cudnn;
    if (by == "aten") return AttentionChoice::aten;
    if (by == "tiles") return AttentionChoice::tiles;
    throw InvalidArgument(
        concat("LOCKSTEP_ATTENTION is '", by, "'; it must be auto, cudnn, aten or tiles"));
  }();
  return choice;
}

Attended attend(kernels::Attention& attention, const AttentionShape& shape, const at::Tensor& qkv) {
  Attended attended{
      .by = way_of(attention, shape), .out = {}, .log_sum_exp = {}, .seed = {}, .offset = {}};
  if (attended.by == AttentionBy::aten) {
    attend_through_aten(shape, qkv, attended);
    return attended;
  }
  attended.out = empty_rows(qkv, shape.heads * shape.head_size);
  attended.log_sum_exp = empty_floats(qkv, {shape.batch, shape.heads, shape.tokens});
  const kernels::AttentionForward call{
      .qkv = bits(qkv), .out = bits(attended.out), .log_sum_exp = floats(attended.log_sum_exp)};
  if (attended.by == AttentionBy::tiles) {
    kernels::tile_attention_forward(shape, call, stream());
  } else {
    const at::Tensor scratch = bytes_beside(qkv, attention.forward_scratch(shape));
    attention.forward(shape, call, scratch.data_ptr(), stream());
  }
  return attended;
}

Summed attention_gradient(kernels::Attention& attention, const AttentionShape& shape,
                          const at::Tensor& qkv, const Attended& attended,
                          const at::Tensor& gradient) {
  if (attended.by == AttentionBy::aten) {
    return gradient_through_aten(shape, qkv, attended, gradient);
  }
  const at::Tensor rows = at::empty_like(qkv);
  const kernels::AttentionBackward call{.qkv = bits(qkv),
                                        .out = bits(attended.out),
                                        .log_sum_exp = floats(attended.log_sum_exp),
                                        .gradient = bits(gradient),
                                        .qkv_gradient = bits(rows)};
  if (attended.by == AttentionBy::tiles) {
    const at::Tensor scratch = bytes_beside(rows, kernels::tile_attention_scratch(shape));
    const at::Tensor partial = empty_floats(rows, {kernels::tile_attention_sums(shape)});
    const kernels::UnfinishedSums queries = kernels::tile_attention_backward(
        shape, call, scratch.data_ptr(), floats(partial), stream());
    return {.rows = rows, .sums = {}, .unfinished = Unfinished{queries, partial}};
  }
  const at::Tensor scratch = bytes_beside(rows, attention.backward_scratch(shape));
  attention.backward(shape, call, scratch.data_ptr(), stream());
  return {.rows = rows, .sums = {}};
}

}  // namespace lockstep::fused
