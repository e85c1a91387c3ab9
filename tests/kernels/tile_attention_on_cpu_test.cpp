// Attention's own kernels, compiled for the CPU (on_cpu/launch.h), against float64.

#include <gtest/gtest.h>

#include <string>

#include "kernels/attention_backward.cuh"
#include "kernels/attention_forward.cuh"
#include "kernels/attention_passes.cuh"
#include "tests/kernels/on_cpu/launch.h"
#include "tests/kernels/on_cpu/numbers.h"

namespace {

using namespace lockstep::kernels;
using namespace lockstep::kernels::attention;
using on_cpu::Lateness;
using on_cpu::Schedule;
using on_cpu::Values;

struct Case {
  Shape shape;
  unsigned blocks;
  int parts;  // of a head, backward
};

std::string name_of(const Case& tried) {
  const Shape& shape = tried.shape;
  return "Batch" + std::to_string(shape.batch) + "Tokens" + std::to_string(shape.tokens) + "Heads" +
         std::to_string(shape.heads) + "Blocks" + std::to_string(tried.blocks) +
         (tried.parts == 1 ? "" : "Divided");
}

// What attention is given and gives.
struct Attended {
  std::vector<Bf16> out, qkv_gradient;
  std::vector<float> log_sum_exp;
  std::vector<float> query_sums;  // of the gradient's columns, in parts

  bool operator==(const Attended&) const = default;
};

Attended attend(const Case& tried, const Schedule& schedule, Values<Bf16>& qkv,
                Values<Bf16>& gradient) {
  const Shape& shape = tried.shape;
  const std::int64_t rows = shape.batch * shape.tokens, columns = shape.heads * kHeadSize;
  Values<Bf16> out(rows * columns), qkv_gradient(rows * columns * 3);
  Values<float> log_sum_exp(rows * shape.heads), row_values(2 * rows * shape.heads);
  // What was left in scratch must not matter.
  Values<float> scratch(shape.all_heads() * tried.parts * shape.tokens * kHeadSize, NAN);
  Values<float> query_sums(rows / (tried.parts == 1 ? kSide : kTokens) * columns, NAN);
  const auto map = [&](Values<Bf16>& matrix, std::int64_t width, int tile_rows) {
    return on_cpu::map_of(matrix.data(), rows, width, width, tile_rows);
  };
  const ForwardMatrices forward{.queries = map(qkv, 3 * columns, kSide),
                                .keys_and_values = map(qkv, 3 * columns, kTokens),
                                .out = map(out, columns, kSide)};
  on_cpu::launch(
      {.blocks = tried.blocks, .threads = kForwardThreads, .shared_bytes = sizeof(ForwardShared)},
      schedule, [&] { forward_kernel(forward, log_sum_exp.data(), shape); });
  const unsigned tiles = static_cast<unsigned>(shape.all_heads() * shape.tiles());
  on_cpu::launch({.blocks = tiles, .threads = kPassThreads}, schedule, [&] {
    row_kernel(out.data(), gradient.data(), log_sum_exp.data(), row_values.data(), shape);
  });
  const BackwardMatrices backward{.qkv = map(qkv, 3 * columns, kTokens),
                                  .gradient = map(gradient, columns, kTokens),
                                  .qkv_gradient = map(qkv_gradient, 3 * columns, kSide)};
  on_cpu::launch(
      {.blocks = tried.blocks, .threads = kBackwardThreads, .shared_bytes = sizeof(BackwardShared)},
      schedule, [&] {
        backward_kernel(backward, row_values.data(), scratch.data(), query_sums.data(), shape,
                        tried.parts);
      });
  if (tried.parts > 1) {
    on_cpu::launch(
        {.blocks = tiles, .threads = kJoinThreads, .shared_bytes = sizeof(JoinShared)}, schedule,
        [&] { join_kernel(scratch.data(), qkv_gradient.data(), query_sums.data(), shape); });
  }
  return {out.copy(), qkv_gradient.copy(), log_sum_exp.copy(), query_sums.copy()};
}

using Matrix = std::vector<double>;  // of one head, [tokens, 64]

Matrix head_of(Values<Bf16>& all, const Shape& shape, int head, int part, int parts) {
  Matrix found;
  const std::int64_t width = std::int64_t{parts} * shape.heads * kHeadSize;
  for (int token = 0; token < shape.tokens; ++token) {
    const std::int64_t row = head / shape.heads * shape.tokens + token;
    for (int i = 0; i < kHeadSize; ++i) {
      found.push_back(
          to_float(all[row * width + (part * shape.heads + head % shape.heads) * kHeadSize + i]));
    }
  }
  return found;
}

double dot(const Matrix& a, int row_a, const Matrix& b, int row_b) {
  double sum = 0;
  for (int i = 0; i < kHeadSize; ++i) sum += a[row_a * kHeadSize + i] * b[row_b * kHeadSize + i];
  return sum;
}
void add(Matrix& to, int row, double factor, const Matrix& from, int from_row) {
  for (int i = 0; i < kHeadSize; ++i) {
    to[row * kHeadSize + i] += factor * from[from_row * kHeadSize + i];
  }
}

struct Exact {
  Matrix out, gradients[3], log_sum_exp;
};

Exact exactly(const Shape& shape, const Matrix& queries, const Matrix& keys, const Matrix& values,
              const Matrix& gradient) {
  const Matrix none(queries.size());
  Exact found{none, {none, none, none}, {}};
  for (int query = 0; query < shape.tokens; ++query) {
    std::vector<double> weights;
    double total = 0;
    for (int key = 0; key <= query; ++key) {
      weights.push_back(std::exp(shape.scale * dot(queries, query, keys, key)));
      total += weights.back();
    }
    found.log_sum_exp.push_back(std::log(total));
    for (int key = 0; key <= query; ++key) {
      weights[key] /= total;
      add(found.out, query, weights[key], values, key);
    }
    const double mean = dot(found.out, query, gradient, query);
    for (int key = 0; key <= query; ++key) {
      const double inner = shape.scale * weights[key] * (dot(gradient, query, values, key) - mean);
      add(found.gradients[0], query, inner, keys, key);
      add(found.gradients[1], key, inner, queries, query);
      add(found.gradients[2], key, weights[key], gradient, query);
    }
  }
  return found;
}

double apart(const Matrix& found, const Matrix& exact) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    difference += (found[i] - exact[i]) * (found[i] - exact[i]);
    size += exact[i] * exact[i];
  }
  return std::sqrt(difference / size);
}

Matrix column_sums(const Matrix& gradient) {
  Matrix sums(kHeadSize);
  for (std::size_t i = 0; i < gradient.size(); ++i) sums[i % kHeadSize] += gradient[i];
  return sums;
}

// Of the head's sequence alone: parts are of squares or of tiles of it.
Matrix query_sums_of_head(const Attended& found, const Shape& shape, int head) {
  const std::size_t width = shape.heads * kHeadSize, rows = found.query_sums.size() / width;
  const std::size_t of_sequence = rows / shape.batch, first = head / shape.heads * of_sequence;
  Matrix sums(kHeadSize);
  for (std::size_t row = first; row < first + of_sequence; ++row) {
    const float* part = &found.query_sums[row * width + head % shape.heads * kHeadSize];
    for (int i = 0; i < kHeadSize; ++i) sums[i] += part[i];
  }
  return sums;
}

class TileAttentionOnCpu : public ::testing::TestWithParam<Case> {};

TEST_P(TileAttentionOnCpu, HasFloat64sResultsAndGradients) {
  const Shape& shape = GetParam().shape;
  const std::int64_t values = std::int64_t{shape.batch} * shape.tokens * shape.heads * kHeadSize;
  Values<Bf16> qkv = on_cpu::random_bf16(3 * values, 1), gradient = on_cpu::random_bf16(values, 2);
  const Attended found = attend(GetParam(), {1, Lateness::early}, qkv, gradient);
  Values<Bf16> out(values), qkv_gradient(3 * values);
  std::copy(found.out.begin(), found.out.end(), out.data());
  std::copy(found.qkv_gradient.begin(), found.qkv_gradient.end(), qkv_gradient.data());
  for (int head = 0; head < shape.all_heads(); ++head) {
    SCOPED_TRACE("head " + std::to_string(head));
    const Exact exact =
        exactly(shape, head_of(qkv, shape, head, 0, 3), head_of(qkv, shape, head, 1, 3),
                head_of(qkv, shape, head, 2, 3), head_of(gradient, shape, head, 0, 1));
    EXPECT_LE(apart(head_of(out, shape, head, 0, 1), exact.out), 6e-3);
    for (int part = 0; part < 3; ++part) {
      EXPECT_LE(apart(head_of(qkv_gradient, shape, head, part, 3), exact.gradients[part]), 1e-2)
          << part;
    }
    EXPECT_LE(apart(query_sums_of_head(found, shape, head), column_sums(exact.gradients[0])), 1e-2);
    const float* log_sums = &found.log_sum_exp[head * shape.tokens];
    EXPECT_LE(apart(Matrix(log_sums, log_sums + shape.tokens), exact.log_sum_exp), 1e-5);
  }
}

TEST_P(TileAttentionOnCpu, HasTheSameBitsInEveryOrderOfEvents) {
  const Shape& shape = GetParam().shape;
  const std::int64_t values = std::int64_t{shape.batch} * shape.tokens * shape.heads * kHeadSize;
  Values<Bf16> qkv = on_cpu::random_bf16(3 * values, 3), gradient = on_cpu::random_bf16(values, 4);
  const Attended first = attend(GetParam(), {1, Lateness::early}, qkv, gradient);
  // The last is one in which a lane is late that passes over keys.
  for (const Schedule& schedule : {Schedule{2, Lateness::late}, Schedule{3, Lateness::random},
                                   Schedule{4, Lateness::random}, Schedule{12, Lateness::early}}) {
    EXPECT_EQ(attend(GetParam(), schedule, qkv, gradient), first) << "seed " << schedule.seed;
  }
}

constexpr float kScale = 0.125f;

// One tile; an odd number of them; several heads for a block; heads that two blocks share.
// Forward, the heads of a block are whole, both whole and in items, or only in items.
INSTANTIATE_TEST_SUITE_P(Cases, TileAttentionOnCpu,
                         ::testing::Values(Case{{1, 128, 1, kScale}, 1, 1},
                                           Case{{1, 384, 2, kScale}, 1, 1},
                                           Case{{2, 256, 3, 0.1f}, 4, 1},
                                           Case{{1, 512, 1, kScale}, 2, 2}),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
