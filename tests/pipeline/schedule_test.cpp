#include "lockstep/pipeline_schedule.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>

#include "lockstep/error.h"

using namespace lockstep;

namespace {

using Kind = PipelineAction::Kind;

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::gpipe,
                                           PipelineSchedule::one_forward_one_backward};

template <typename Check>
void for_all_shapes(Check check) {
  for (const PipelineSchedule schedule : kSchedules) {
    for (int stages = 1; stages <= 7; ++stages) {
      for (int micro_batches = 1; micro_batches <= 17; ++micro_batches) {
        SCOPED_TRACE(testing::Message() << "schedule " << static_cast<int>(schedule) << ", "
                                        << stages << " stages, " << micro_batches);
        check(schedule, PipelineShape{.stages = stages, .micro_batches = micro_batches});
      }
    }
  }
}

// The dearest run, by trying everything.
double cheapest(const std::vector<double>& costs, std::size_t begin, int runs) {
  double sum = 0, best = std::numeric_limits<double>::infinity();
  for (std::size_t end = begin + 1; end <= costs.size(); ++end) {
    sum += costs[end - 1];
    if (runs == 1 && end < costs.size()) continue;
    const double rest = runs == 1 ? 0 : cheapest(costs, end, runs - 1);
    best = std::min(best, std::max(sum, rest));
  }
  return best;
}

}  // namespace

TEST(PipelineSchedule, each_micro_batch_goes_forward_once_and_then_backward_in_order) {
  for_all_shapes([](PipelineSchedule schedule, const PipelineShape& shape) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      int forwards = 0, backwards = 0;
      for (const PipelineAction& action : pipeline_actions(schedule, shape, stage)) {
        int& next = action.kind == Kind::forward ? forwards : backwards;
        EXPECT_EQ(action.micro_batch, next++);
        EXPECT_LE(backwards, forwards);
      }
      EXPECT_EQ(forwards, shape.micro_batches);
      EXPECT_EQ(backwards, shape.micro_batches);
    }
  });
}

TEST(PipelineSchedule, activations_in_flight_are_bounded) {
  for_all_shapes([](PipelineSchedule schedule, const PipelineShape& shape) {
    for (int stage = 0; stage < shape.stages; ++stage) {
      const int bound = schedule == PipelineSchedule::gpipe
                            ? shape.micro_batches
                            : std::min(shape.stages - stage, shape.micro_batches);
      EXPECT_EQ(most_in_flight(pipeline_actions(schedule, shape, stage)), bound) << stage;
    }
  });
}

// No stage waits for ever, and all of them together take as long as the formula says.
TEST(PipelineSchedule, has_the_bubble_of_the_formula) {
  for_all_shapes([](PipelineSchedule schedule, const PipelineShape& shape) {
    const PipelineTimeline timeline = pipeline_timeline(schedule, shape);
    const auto ticks = static_cast<int>(timeline.size());
    EXPECT_EQ(ticks, 2 * (shape.micro_batches + shape.stages - 1));
    int waits = 0;
    for (const auto& tick : timeline) {
      for (const auto& action : tick) waits += action ? 0 : 1;
    }
    EXPECT_DOUBLE_EQ(static_cast<double>(waits) / (ticks * shape.stages), bubble_share(shape));
  });
}

TEST(PipelineSchedule, timelines_can_be_read) {
  EXPECT_EQ(timeline_text(pipeline_timeline(PipelineSchedule::gpipe, {2, 2})),
            "F0 F1 -- -- B0 B1\n"
            "-- F0 F1 B0 B1 --\n");
  EXPECT_EQ(timeline_text(pipeline_timeline(PipelineSchedule::one_forward_one_backward, {2, 3})),
            "F0 F1 -- B0 F2 B1 -- B2\n"
            "-- F0 B0 F1 B1 F2 B2 --\n");
}

TEST(PipelineSchedule, what_cannot_be_is_refused) {
  EXPECT_THROW(pipeline_actions(PipelineSchedule::gpipe, {0, 1}, 0), InvalidArgument);
  EXPECT_THROW(pipeline_actions(PipelineSchedule::gpipe, {1, 0}, 0), InvalidArgument);
  EXPECT_THROW(pipeline_actions(PipelineSchedule::gpipe, {2, 1}, 2), InvalidArgument);
}

TEST(PipelineSplit, equal_costs_give_equal_runs) {
  EXPECT_EQ(split_by_cost({1, 1, 1, 1, 1, 1, 1}, 3), (std::vector<int>{3, 2, 2}));
  EXPECT_EQ(split_by_cost({2, 2}, 2), (std::vector<int>{1, 1}));
}

TEST(PipelineSplit, the_dearest_run_is_as_cheap_as_can_be) {
  const std::vector<std::vector<double>> lists = {
      {1, 2, 3, 4, 5}, {9, 1, 1, 1, 1, 1, 9}, {5, 1, 1, 1}, {1, 1, 1, 20}, {3, 1, 4, 1, 5, 9, 2}};
  for (const auto& costs : lists) {
    for (int runs = 1; runs <= static_cast<int>(costs.size()); ++runs) {
      const std::vector<int> lengths = split_by_cost(costs, runs);
      ASSERT_EQ(static_cast<int>(lengths.size()), runs);
      double dearest = 0;
      auto next = costs.begin();
      for (const int length : lengths) {
        EXPECT_GT(length, 0);
        dearest = std::max(dearest, std::accumulate(next, next + length, 0.0));
        next += length;
      }
      EXPECT_EQ(next, costs.end());
      EXPECT_EQ(dearest, cheapest(costs, 0, runs));
    }
  }
}

TEST(PipelineSplit, more_stages_than_parts_are_refused) {
  EXPECT_THROW(split_by_cost({1, 1}, 3), InvalidArgument);
  EXPECT_THROW(split_by_cost({1, -1}, 2), InvalidArgument);
}

TEST(PipelineSplit, every_micro_batch_has_rows) {
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(split_rows(8, 4), (Sizes{2, 2, 2, 2}));
  EXPECT_EQ(split_rows(10, 4), (Sizes{3, 3, 3, 1}));
  EXPECT_EQ(split_rows(5, 4), (Sizes{2, 1, 1, 1}));
  EXPECT_EQ(split_rows(3, 1), (Sizes{3}));
  EXPECT_THROW(split_rows(3, 4), InvalidArgument);
  for (std::int64_t rows = 1; rows < 40; ++rows) {
    for (int count = 1; count <= rows; ++count) {
      const Sizes sizes = split_rows(rows, count);
      EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}), rows);
      EXPECT_GE(*std::ranges::min_element(sizes), 1);
      EXPECT_TRUE(std::ranges::is_sorted(sizes, std::greater{}));
    }
  }
}
