#include "models/softmax_gradient.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include <ATen/ops/full_like.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

namespace lockstep {
namespace {

// Loops over this many numbers at once are what the compiler makes vector instructions of.
constexpr std::int64_t kLanes = 16;

// exp(x) for x <= 0 to two units in the last place; NaN stays NaN. Below -87 it is as good as 0.
inline float exp_of(float x) {
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRounder = 12582912.f;  // 1.5 * 2^23: adding it rounds to a whole number
  x = x < -87.f ? -87.f : x;
  const float shifted = x * kLog2E + kRounder;
  const float whole = shifted - kRounder;
  const float rest = (x - whole * kLn2High) - whole * kLn2Low;
  float series = 1.9875691500e-4f;
  series = series * rest + 1.3981999507e-3f;
  series = series * rest + 8.3334519073e-3f;
  series = series * rest + 4.1665795894e-2f;
  series = series * rest + 1.6666665459e-1f;
  series = series * rest + 5.0000001201e-1f;
  series = series * rest * rest + rest + 1.f;
  // 2^whole: the low bits of `shifted` are the whole number itself.
  const auto power = (std::bit_cast<std::int32_t>(shifted) + 127) << 23;
  return series * std::bit_cast<float>(power);
}

float largest(const float* row, std::int64_t count) {
  std::array<float, kLanes> best;
  best.fill(-std::numeric_limits<float>::infinity());
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      best[lane] = row[i + lane] > best[lane] ? row[i + lane] : best[lane];
    }
  }
  float result = *std::max_element(best.begin(), best.end());
  for (; i < count; ++i) result = row[i] > result ? row[i] : result;
  return result;
}

// Replaces each x by exp(x - top) and returns their sum.
double exponentials(float* row, std::int64_t count, float top) {
  constexpr std::int64_t kFlush = 64;  // sums of so many are exact enough in float
  double total = 0;
  std::int64_t i = 0;
  while (i + kLanes <= count) {
    std::array<float, kLanes> sums = {};
    const std::int64_t end = std::min(i + kFlush * kLanes, count - kLanes + 1);
    for (; i < end; i += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        row[i + lane] = exp_of(row[i + lane] - top);
        sums[lane] += row[i + lane];
      }
    }
    for (const float sum : sums) total += sum;
  }
  for (; i < count; ++i) {
    row[i] = exp_of(row[i] - top);
    total += row[i];
  }
  return total;
}

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
      for (std::int64_t i = 0; i < options.vocabulary; ++i) row[i] *= factor;
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
