#pragma once

#include <cstdint>
#include <tuple>

#include <ATen/core/Tensor.h>

#include "lockstep/process_group.h"

namespace lockstep {

/// Mean and deviation of each channel over the batches of all ranks, the same bits on every rank.
struct BatchStatistics {
  at::Tensor mean;
  at::Tensor invstd;
  /// CUDA: values per channel of each rank that had any, in int32 for the kernels. CPU: their sum.
  at::Tensor counts;
};

/// Where running statistics are kept: all three undefined for none.
struct RunningStatistics {
  at::Tensor mean;
  at::Tensor var;
  double momentum = 0;
};

/// Collective. `input` is (batch, channels, ...), dense in some format. Updates `running` in place.
BatchStatistics gather_statistics(ProcessGroup& group, const at::Tensor& input, double eps,
                                  const RunningStatistics& running);

/// (input - mean) x invstd x weight + bias.
at::Tensor normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const BatchStatistics& statistics, double eps);

/// What a gradient does to a channel on this rank: its sum, and its sum times (input - mean).
struct GradientSums {
  at::Tensor sum_dy;
  at::Tensor sum_dy_xmu;
  at::Tensor grad_weight;
  at::Tensor grad_bias;
};

GradientSums local_gradient_sums(const at::Tensor& grad_output, const at::Tensor& input,
                                 const at::Tensor& weight, const BatchStatistics& statistics);

/// Collective: the gradient of the input, with `sums` added over ranks in rank order.
at::Tensor input_gradient(ProcessGroup& group, const at::Tensor& grad_output,
                          const at::Tensor& input, const at::Tensor& weight,
                          const BatchStatistics& statistics, const GradientSums& sums);

}  // namespace lockstep
