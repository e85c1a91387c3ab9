// Gradients of matrices as two thin factors. The operations, and their order for one matrix, are
// those of Python's powerSGD_hook; what is remembered goes by parameter instead of by bucket.
#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include "ddp/compression_impl.h"
#include "ddp/orthogonalize.h"

namespace lockstep {
namespace {

/// A gradient that travels as P and Q. Batches of one matrix, because that is what Python
/// multiplies.
struct Factored {
  std::size_t index = 0;
  at::Tensor matrix;  // 1 x rows x columns, a view of the bucket
  std::int64_t rank = 0;
  at::Tensor p, q;  // views of what is reduced together

  std::int64_t rows() const { return matrix.size(1); }
  std::int64_t columns() const { return matrix.size(2); }
};

bool saves_enough(std::int64_t rows, std::int64_t columns, std::int64_t rank, double rate) {
  return static_cast<double>((rows + columns) * rank) * rate < static_cast<double>(rows * columns);
}

// The same on every rank, another one for each parameter and step.
at::Tensor random_q(const Factored& factored, std::uint64_t seed, std::int64_t iteration) {
  std::uint64_t mixed = seed;
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(iteration), static_cast<std::uint64_t>(factored.index)}) {
    mixed = (mixed ^ (part + 0x9e3779b97f4a7c15)) * 0xbf58476d1ce4e5b9;
    mixed ^= mixed >> 31;
  }
  auto generator = at::make_generator<at::CPUGeneratorImpl>(mixed);
  return at::randn({1, factored.columns(), factored.rank}, generator,
                   at::TensorOptions(factored.matrix.scalar_type()));
}

void mean_of_whole(const std::vector<at::Tensor>& tensors, const CompressionLink& link) {
  if (tensors.empty()) return;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.view({-1}));
  const at::Tensor together = at::cat(flat);
  link.mean(together);
  std::int64_t offset = 0;
  for (at::Tensor& tensor : flat) {
    tensor.copy_(together.narrow(0, offset, tensor.numel()));
    offset += tensor.numel();
  }
}

}  // namespace

void GradientCompression::Impl::reduce_power_sgd(const PowerSGDOptions& wanted,
                                                 const std::vector<CompressedPiece>& pieces,
                                                 const CompressionLink& link) {
  std::vector<at::Tensor> before;
  if (error_feedback) {
    for (const CompressedPiece& piece : pieces) {
      piece.gradient.add_(error_of(piece.index).view(piece.gradient.sizes()));
      before.push_back(piece.gradient.clone());
    }
  }

  std::vector<Factored> factored;
  std::vector<at::Tensor> whole;
  std::int64_t p_numel = 0, q_numel = 0;
  for (const CompressedPiece& piece : pieces) {
    const std::int64_t rows = piece.gradient.dim() > 0 ? piece.gradient.size(0) : 1;
    const std::int64_t columns = rows > 0 ? piece.gradient.numel() / rows : 0;
    const std::int64_t rank = std::min({rows, columns, wanted.matrix_approximation_rank});
    statistics.before += static_cast<double>(piece.gradient.numel());
    if (rank == 0 || !saves_enough(rows, columns, rank, wanted.min_compression_rate)) {
      whole.push_back(piece.gradient);
      statistics.after += static_cast<double>(piece.gradient.numel());
      continue;
    }
    factored.push_back({.index = piece.index,
                        .matrix = piece.gradient.view({1, rows, columns}),
                        .rank = rank,
                        .p = {},
                        .q = {}});
    p_numel += rows * rank;
    q_numel += columns * rank;
    statistics.after += static_cast<double>((rows + columns) * rank);
  }

  mean_of_whole(whole, link);
  if (!factored.empty()) {
    const at::TensorOptions type = factored.front().matrix.options();
    const at::Tensor ps = at::empty({p_numel}, type), qs_now = at::empty({q_numel}, type);
    std::int64_t p_offset = 0, q_offset = 0;
    for (Factored& each : factored) {
      each.p = ps.narrow(0, p_offset, each.rows() * each.rank).view({1, each.rows(), each.rank});
      each.q = qs_now.narrow(0, q_offset, each.columns() * each.rank)
                   .view({1, each.columns(), each.rank});
      p_offset += each.p.numel();
      q_offset += each.q.numel();
      const auto last = qs.find(entries[each.index].name);
      each.q.copy_(wanted.warm_start && last != qs.end()
                       ? last->second.view(each.q.sizes())
                       : random_q(each, wanted.random_seed, iteration));
      orthogonalize(each.q, wanted.orthogonalization_epsilon);
      at::bmm_out(each.p, each.matrix, each.q);
    }
    link.mean(ps);
    ps.mul_(link.group.size());  // Python orthogonalizes the sum, which matters for epsilon
    for (Factored& each : factored) {
      orthogonalize(each.p, wanted.orthogonalization_epsilon);
      at::bmm_out(each.q, each.matrix.transpose(1, 2), each.p);
    }
    link.mean(qs_now);
    for (Factored& each : factored) {
      at::bmm_out(each.matrix, each.p, each.q.transpose(1, 2));
      if (wanted.warm_start) next_qs[entries[each.index].name] = each.q.clone();
    }
  }

  for (std::size_t i = 0; i < before.size(); ++i) {
    remember_error(pieces[i].index, before[i].sub_(pieces[i].gradient));
  }
}

}  // namespace lockstep
