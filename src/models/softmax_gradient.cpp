#include "models/softmax_gradient.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/full_like.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include "models/vector_loops.h"

namespace lockstep {
namespace {

void rows_on_cpu(const at::Tensor& logits, const at::Tensor& labels, at::Tensor& losses,
                 const SoftmaxGradientOptions& options) {
  auto* data = logits.data_ptr<float>();
  const auto* label = labels.const_data_ptr<std::int64_t>();
  auto* loss = losses.data_ptr<float>();
  const std::int64_t columns = logits.size(1);
  at::parallel_for(0, logits.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float* row = data + r * columns;
      const float top = largest(row, options.vocabulary);
      const float own = row[label[r]];
      const double sum = exponentials(row, options.vocabulary, top);
      loss[r] = static_cast<float>(std::log(sum) + (static_cast<double>(top) - own));
      if (!options.wanted) continue;
      const auto factor = static_cast<float>(1 / sum);
      scale(row, options.vocabulary, factor);
      row[label[r]] -= 1;
      std::fill(row + options.vocabulary, row + columns, 0.f);
    }
  });
}

}  // namespace

at::Tensor softmax_gradient(const at::Tensor& logits, const at::Tensor& labels, at::Tensor losses,
                            const SoftmaxGradientOptions& options) {
  if (logits.is_cpu() && logits.scalar_type() == at::kFloat && logits.is_contiguous() &&
      labels.is_contiguous()) {
    rows_on_cpu(logits, labels, losses, options);
    return logits;
  }
  const at::Tensor real = logits.narrow(1, 0, options.vocabulary);
  const at::Tensor values = real.to(at::kFloat);
  const at::Tensor column = labels.unsqueeze(1);
  const at::Tensor total = at::logsumexp(values, 1, /*keepdim=*/true);
  losses.copy_((total - at::gather(values, 1, column)).squeeze(1));
  if (options.wanted) {
    at::Tensor gradient = (values - total).exp_();
    gradient.scatter_add_(1, column, at::full_like(total, -1));
    real.copy_(gradient);
    logits.narrow(1, options.vocabulary, logits.size(1) - options.vocabulary).zero_();
  }
  return logits;
}

}  // namespace lockstep
