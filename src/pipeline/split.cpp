#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/error.h"
#include "lockstep/pipeline_schedule.h"

namespace lockstep {

std::vector<int> split_by_cost(const std::vector<double>& costs, int runs) {
  const int count = static_cast<int>(costs.size());
  if (runs < 1 || count < runs) {
    throw InvalidArgument(
        concat("Pipeline: ", count, " parts cannot be divided among ", runs, " stages"));
  }
  for (int i = 0; i < count; ++i) {
    if (!(costs[i] > 0) || !std::isfinite(costs[i])) {
      throw InvalidArgument(
          concat("Pipeline: part ", i, " has cost ", costs[i], "; it must be above 0"));
    }
  }
  if (std::ranges::all_of(costs, [&](double cost) { return cost == costs.front(); })) {
    std::vector<int> lengths(runs, count / runs);
    for (int i = 0; i < count % runs; ++i) ++lengths[i];
    return lengths;
  }
  // best[r][n]: what the dearest of r runs over the first n parts costs at least.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> up_to(count + 1, 0);
  for (int i = 0; i < count; ++i) up_to[i + 1] = up_to[i] + costs[i];
  std::vector<std::vector<double>> best(runs + 1, std::vector<double>(count + 1, kNever));
  std::vector<std::vector<int>> begin(runs + 1, std::vector<int>(count + 1, 0));
  best[0][0] = 0;
  for (int run = 1; run <= runs; ++run) {
    for (int end = run; end <= count; ++end) {
      for (int start = run - 1; start < end; ++start) {
        const double dearest = std::max(best[run - 1][start], up_to[end] - up_to[start]);
        if (dearest < best[run][end]) {
          best[run][end] = dearest;
          begin[run][end] = start;
        }
      }
    }
  }
  std::vector<int> lengths(runs);
  for (int run = runs, end = count; run > 0; --run) {
    lengths[run - 1] = end - begin[run][end];
    end = begin[run][end];
  }
  return lengths;
}

std::vector<std::int64_t> split_rows(std::int64_t rows, int micro_batches) {
  if (micro_batches < 1 || rows < micro_batches) {
    throw InvalidArgument(concat("Pipeline: a batch of ", rows, " rows cannot be divided into ",
                                 micro_batches, " micro-batches"));
  }
  std::vector<std::int64_t> sizes;
  std::int64_t left = rows;
  for (int waiting = micro_batches; waiting > 0; --waiting) {
    // Those that follow must not be left without a row.
    const std::int64_t even = (rows + micro_batches - 1) / micro_batches;
    sizes.push_back(waiting == 1 ? left : std::min(even, left - (waiting - 1)));
    left -= sizes.back();
  }
  return sizes;
}

}  // namespace lockstep
