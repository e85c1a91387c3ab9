#include "models/fused_head.h"

#include <ATen/ops/empty_like.h>

#include "kernels/cross_entropy.h"
#include "kernels/head_loss.h"
#include "kernels/tile_products.h"
#include "lockstep/gpt2.h"
#include "models/fused_ops.h"

namespace lockstep {
namespace {

// Where the head's product leaves what the loss is made of.
void losses_by_tiles(const kernels::HeadRows& of, const at::Tensor& head, const at::Tensor& losses,
                     FusedHeadState& state) {
  const at::Tensor rows = state.rows;
  const int parts = kernels::exponential_product_parts(head.size(0));
  const at::Tensor shifts = fused::empty_floats(rows, {of.count});
  const at::Tensor partial = fused::empty_floats(rows, {parts, of.count});
  state.factors = fused::empty_floats(rows, {of.count});
  state.gradient = fused::empty_rows(rows, head.size(0));
  state.rows = at::empty_like(rows);
  kernels::label_shifts(of, fused::floats(shifts), fused::stream());
  kernels::exponential_product({.m = of.count,
                                .n = head.size(0),
                                .k = of.width,
                                .used = of.vocabulary,
                                .a = of.rows,
                                .weight = of.head,
                                .shifts = fused::floats(shifts),
                                .out = fused::bits(state.gradient),
                                .partial = fused::floats(partial)},
                               fused::stream());
  kernels::finish_head_loss({.of = of,
                             .partial = fused::floats(partial),
                             .parts = parts,
                             .exponentials = fused::bits(state.gradient),
                             .stride = static_cast<int>(head.size(0)),
                             .losses = fused::floats(losses),
                             .factors = fused::floats(state.factors),
                             .scaled = fused::bits(state.rows)},
                            fused::stream());
}

}  // namespace

at::Tensor fused_head_forward(kernels::Gemm& gemm, const at::Tensor& rows, const at::Tensor& head,
                              const at::Tensor& labels, std::int64_t vocabulary,
                              FusedHeadState& state) {
  const at::Tensor losses = fused::empty_floats(rows, {rows.size(0)});
  state.rows = rows;
  if (kernels::tile_products_pay(rows.size(0), head.size(0), head.size(1))) {
    losses_by_tiles({.rows = fused::bits(rows),
                     .head = fused::bits(head),
                     .labels = labels.const_data_ptr<std::int64_t>(),
                     .count = static_cast<int>(rows.size(0)),
                     .width = static_cast<int>(rows.size(1)),
                     .vocabulary = static_cast<int>(vocabulary),
                     .ignored_label = kIgnoredLabel},
                    head, losses, state);
    return losses;
  }
  state.gradient = fused::linear_input_gradient(gemm, rows, head);
  kernels::cross_entropy({.logits = fused::bits(state.gradient),
                          .labels = labels.const_data_ptr<std::int64_t>(),
                          .losses = fused::floats(losses),
                          .rows = static_cast<int>(rows.size(0)),
                          .vocabulary = static_cast<int>(vocabulary),
                          .stride = static_cast<int>(head.size(0)),
                          .ignored_label = kIgnoredLabel},
                         fused::stream());
  return losses;
}

FusedHeadGradients fused_head_backward(kernels::Gemm& gemm, const at::Tensor& factor,
                                       const at::Tensor& head, FusedHeadState& state) {
  const std::int64_t rows = state.rows.size(0), columns = head.size(0), width = head.size(1);
  FusedHeadGradients gradients{.rows = at::empty_like(state.rows),
                               .head = fused::empty_floats(head, {columns, width})};
  gemm.run({.m = rows,
            .n = width,
            .k = columns,
            .a = fused::bits(state.gradient),
            .b = fused::bits(head),
            .out = gradients.rows.data_ptr(),
            .factor = fused::floats(factor)},
           fused::stream());
  gemm.run({.m = columns,
            .n = width,
            .k = rows,
            .a = fused::bits(state.gradient),
            .b = fused::bits(state.rows),
            .transpose_a = true,
            .out = gradients.head.data_ptr(),
            .out_is_float = true,
            .factor = fused::floats(factor)},
           fused::stream());
  state.gradient = at::Tensor();
  return gradients;
}

}  // namespace lockstep
