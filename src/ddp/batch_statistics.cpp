#include "ddp/batch_statistics.h"

#include <vector>

#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm_backward_elemt.h>
#include <ATen/ops/batch_norm_backward_reduce.h>
#include <ATen/ops/batch_norm_elemt.h>
#include <ATen/ops/batch_norm_gather_stats_with_counts.h>
#include <ATen/ops/batch_norm_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

OptionalTensor optional(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

// Half precision is added up in float32, as BatchNorm's kernels do.
at::ScalarType accumulate_type(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::int64_t values_per_channel(const at::Tensor& input) {
  return input.numel() == 0 ? 0 : input.numel() / input.size(1);
}

// All dimensions but the channels.
std::vector<std::int64_t> reduced_dimensions(const at::Tensor& input) {
  std::vector<std::int64_t> dimensions = {0};
  for (std::int64_t dimension = 2; dimension < input.dim(); ++dimension) {
    dimensions.push_back(dimension);
  }
  return dimensions;
}

// A value per channel, shaped to be combined with the input.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(input.dim(), 1);
  shape[1] = -1;
  return values.reshape(shape);
}

// Row r is rank r's vector: what is computed from it is the same on every rank.
at::Tensor gather_rows(ProcessGroup& group, const at::Tensor& vector) {
  std::vector<at::Tensor> rows;
  for (int rank = 0; rank < group.size(); ++rank) {
    rows.push_back(at::empty_like(vector));
  }
  group.all_gather(rows, vector);
  return at::stack(rows);
}

BatchStatistics gather_on_cuda(ProcessGroup& group, const at::Tensor& input, double eps,
                               const RunningStatistics& running) {
  const std::int64_t channels = input.size(1);
  const auto options = input.options().dtype(accumulate_type(input)).requires_grad(false);
  at::Tensor mine = at::zeros({2 * channels + 1}, options);
  if (input.numel() > 0) {
    auto [mean, invstd] = at::batch_norm_stats(input, eps);
    mine = at::cat({mean, invstd, at::full({1}, values_per_channel(input), mean.options())});
  }
  at::Tensor all = gather_rows(group, mine);
  // Ranks without input are left out; the kernel would divide by their zero.
  all = all.index({all.select(1, 2 * channels).ge(1)});
  const auto parts = all.split_with_sizes({channels, channels, 1}, 1);
  at::Tensor counts = parts[2].reshape({-1});
  if (running.mean.defined()) {
    counts = counts.to(running.mean.scalar_type());
  }
  auto [mean, invstd] =
      at::batch_norm_gather_stats_with_counts(input, parts[0], parts[1], optional(running.mean),
                                              optional(running.var), running.momentum, eps, counts);
  return {mean, invstd, counts.to(at::kInt)};
}

BatchStatistics gather_on_cpu(ProcessGroup& group, const at::Tensor& input, double eps,
                              const RunningStatistics& running) {
  const std::int64_t channels = input.size(1);
  const std::int64_t count = values_per_channel(input);
  const auto options = input.options().dtype(at::kDouble).requires_grad(false);
  at::Tensor mine = at::zeros({2 * channels + 1}, options);
  if (count > 0) {
    auto [variance, mean] =
        at::var_mean(input.to(accumulate_type(input)), reduced_dimensions(input), /*correction=*/0);
    mine = at::cat({mean.to(at::kDouble), variance.to(at::kDouble),
                    at::full({1}, static_cast<double>(count), options)});
  }
  const at::Tensor all = gather_rows(group, mine);
  const auto parts = all.split_with_sizes({channels, channels, 1}, 1);
  const at::Tensor& means = parts[0];
  const at::Tensor& counts = parts[2];
  const at::Tensor total = counts.sum();
  const auto total_count = total.item<double>();
  if (total_count < 2) {
    throw InvalidArgument(concat("SyncBatchNorm: all ranks together have ", total_count,
                                 " values per channel; training needs two"));
  }
  // The variance of the joined batch: those of the parts, and how far their means are apart.
  const at::Tensor mean = means.mul(counts).sum(0).div(total);
  const at::Tensor variance = parts[1].add(means.sub(mean).square()).mul(counts).sum(0).div(total);
  if (running.mean.defined()) {
    const auto update = [&](const at::Tensor& average, const at::Tensor& value) {
      average.mul_(1 - running.momentum).add_(value.to(average.scalar_type()), running.momentum);
    };
    update(running.mean, mean);
    update(running.var, variance.mul(total_count / (total_count - 1)));
  }
  const at::ScalarType type = accumulate_type(input);
  return {mean.to(type), variance.add(eps).rsqrt().to(type), total};
}

// What the kernel computes on CUDA, from operators.
at::Tensor input_gradient_on_cpu(const at::Tensor& grad_output, const at::Tensor& input,
                                 const at::Tensor& weight, const BatchStatistics& statistics,
                                 const at::Tensor& sum_dy, const at::Tensor& sum_dy_xmu) {
  const at::ScalarType type = accumulate_type(input);
  const at::Tensor mean_dy = sum_dy.div(statistics.counts).to(type);
  const at::Tensor slope =
      sum_dy_xmu.div(statistics.counts).to(type).mul(statistics.invstd.square());
  at::Tensor factor = statistics.invstd;
  if (weight.defined()) {
    factor = factor.mul(weight.to(type));
  }
  // (dy - mean_dy - (x - mean) * slope) * factor, with what is constant in a channel in one term.
  const at::Tensor constant = statistics.mean.mul(slope).sub(mean_dy);
  at::Tensor gradient = input.to(type).mul(per_channel(slope.neg(), input));
  gradient.add_(grad_output.to(type)).add_(per_channel(constant, input));
  return gradient.mul_(per_channel(factor, input)).to(input.scalar_type());
}

}  // namespace

BatchStatistics gather_statistics(ProcessGroup& group, const at::Tensor& input, double eps,
                                  const RunningStatistics& running) {
  return input.is_cuda() ? gather_on_cuda(group, input, eps, running)
                         : gather_on_cpu(group, input, eps, running);
}

at::Tensor normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const BatchStatistics& statistics, double eps) {
  if (input.numel() == 0) {
    return at::empty_like(input);
  }
  if (input.is_cuda()) {
    return at::batch_norm_elemt(input, optional(weight), optional(bias), statistics.mean,
                                statistics.invstd, eps);
  }
  const at::ScalarType type = accumulate_type(input);
  const at::Tensor factor =
      weight.defined() ? statistics.invstd.mul(weight.to(type)) : statistics.invstd;
  at::Tensor shift = statistics.mean.mul(factor).neg();
  if (bias.defined()) {
    shift = shift.add(bias.to(type));
  }
  return at::addcmul(per_channel(shift, input), input.to(type), per_channel(factor, input))
      .to(input.scalar_type());
}

GradientSums local_gradient_sums(const at::Tensor& grad_output, const at::Tensor& input,
                                 const at::Tensor& weight, const BatchStatistics& statistics) {
  GradientSums sums;
  if (input.numel() == 0) {
    // This rank still takes part in the sum over all.
    sums.sum_dy = at::zeros_like(statistics.mean);
    sums.sum_dy_xmu = at::zeros_like(statistics.mean);
    sums.grad_weight = sums.grad_bias = at::zeros_like(statistics.mean);
  } else if (input.is_cuda()) {
    std::tie(sums.sum_dy, sums.sum_dy_xmu, sums.grad_weight, sums.grad_bias) =
        at::batch_norm_backward_reduce(grad_output, input, statistics.mean, statistics.invstd,
                                       optional(weight), true, true, true);
  } else {
    const at::ScalarType type = accumulate_type(input);
    const auto dimensions = reduced_dimensions(input);
    const at::Tensor dy = grad_output.to(type);
    sums.sum_dy = dy.sum(dimensions);
    sums.sum_dy_xmu =
        input.to(type).sub(per_channel(statistics.mean, input)).mul_(dy).sum(dimensions);
    sums.grad_weight = sums.sum_dy_xmu.mul(statistics.invstd);
    sums.grad_bias = sums.sum_dy;
  }
  return sums;
}

at::Tensor input_gradient(ProcessGroup& group, const at::Tensor& grad_output,
                          const at::Tensor& input, const at::Tensor& weight,
                          const BatchStatistics& statistics, const GradientSums& sums) {
  const std::int64_t channels = input.size(1);
  at::Tensor mine = at::cat({sums.sum_dy, sums.sum_dy_xmu});
  if (!input.is_cuda()) {
    mine = mine.to(at::kDouble);
  }
  const auto total = gather_rows(group, mine).sum(0).split(channels);
  if (input.numel() == 0) {
    return at::zeros_like(input);
  }
  if (input.is_cuda()) {
    const OptionalTensor factor =
        weight.defined() ? OptionalTensor(weight.to(statistics.mean.scalar_type())) : std::nullopt;
    return at::batch_norm_backward_elemt(grad_output, input, statistics.mean, statistics.invstd,
                                         factor, total[0], total[1], statistics.counts);
  }
  return input_gradient_on_cpu(grad_output, input, weight, statistics, total[0], total[1]);
}

}  // namespace lockstep
