#include "lockstep/lr_schedule.h"

#include <cmath>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "lockstep/optimizer.h"

using namespace lockstep;

namespace {

SGD two_groups() {
  const auto parameter = [](const char* name) {
    return std::vector<NamedParameter>{{name, at::zeros({1}).requires_grad_()}};
  };
  return SGD({ParamGroup{.parameters = parameter("a"), .lr = 1.0},
              ParamGroup{.parameters = parameter("b"), .lr = 0.5}},
             {.momentum = 0.9});
}

}  // namespace

TEST(LRSchedule, every_group_moves_from_its_own_rate) {
  SGD optimizer = two_groups();
  const LRSchedule schedule(LinearSchedule{.warmup_steps = 4, .total_steps = 12});
  schedule.apply(optimizer, 2);
  EXPECT_EQ(optimizer.lr(0), 0.5);
  EXPECT_EQ(optimizer.lr(1), 0.25);
  schedule.apply(optimizer, 8);
  EXPECT_EQ(optimizer.lr(0), 0.5);
  schedule.apply(optimizer, 0);  // a function of the step: going back is as good as going on
  EXPECT_EQ(optimizer.lr(0), 0.0);
  schedule.apply(optimizer, 100);
  EXPECT_EQ(optimizer.lr(1), 0.0);
}

TEST(LRSchedule, one_cycle_moves_momentum_the_other_way) {
  SGD optimizer = two_groups();
  const LRSchedule schedule(OneCycleSchedule{.total_steps = 10});
  schedule.apply(optimizer, 0);
  EXPECT_NEAR(optimizer.lr(0), 1.0 / 25, 1e-12);
  EXPECT_NEAR(optimizer.momentum(0), 0.95, 1e-12);
  schedule.apply(optimizer, 2);
  EXPECT_NEAR(optimizer.lr(0), 1.0, 1e-12);
  EXPECT_NEAR(optimizer.lr(1), 0.5, 1e-12);
  EXPECT_NEAR(optimizer.momentum(1), 0.85, 1e-12);
  EXPECT_THROW(schedule.apply(optimizer, 11), InvalidArgument);
}

TEST(LRSchedule, a_resumed_optimizer_keeps_its_first_rate) {
  SGD optimizer = two_groups();
  const LRSchedule schedule(CosineSchedule{.total_steps = 10});
  schedule.apply(optimizer, 7);
  SGD resumed = two_groups();
  resumed.load_state(optimizer.state());
  schedule.apply(optimizer, 8);
  schedule.apply(resumed, 8);
  EXPECT_EQ(optimizer.lr(0), resumed.lr(0));
  EXPECT_EQ(resumed.groups()[1].initial_lr, 0.5);
}

TEST(LRSchedule, a_plateau_lowers_the_rate_and_resumes_from_its_state) {
  const LRScheduleOptions options = PlateauSchedule{.factor = 0.5, .patience = 1};
  SGD optimizer = two_groups();
  LRSchedule schedule(options);
  schedule.observe(optimizer, 1.0);
  schedule.observe(optimizer, 1.0);
  LRSchedule resumed(options);
  resumed.load_state(schedule.state());
  EXPECT_EQ(optimizer.lr(0), 1.0);
  resumed.observe(optimizer, std::nan(""));  // not better than anything
  EXPECT_EQ(optimizer.lr(0), 0.5);
  EXPECT_EQ(optimizer.lr(1), 0.25);
  resumed.apply(optimizer, 3);
  EXPECT_EQ(optimizer.lr(0), 0.5);
  EXPECT_THROW(resumed.load_state({}), InvalidArgument);
}

TEST(LRSchedule, options_out_of_range_are_refused) {
  const LRScheduleOptions bad[] = {
      ConstantSchedule{.warmup_steps = -1},
      LinearSchedule{},
      CosineSchedule{.warmup_steps = 5, .total_steps = 4},
      StepSchedule{.step_size = 0},
      OneCycleSchedule{.total_steps = 5, .pct_start = 1.5},
      InverseSqrtSchedule{.timescale = -1},
      NoamSchedule{.model_size = 0},
      PlateauSchedule{.factor = 1.0},
  };
  for (const LRScheduleOptions& options : bad) {
    EXPECT_THROW(LRSchedule{options}, InvalidArgument) << options.index();
  }
  EXPECT_THROW(LRSchedule(ConstantSchedule{}).lr(-1, 1.0), InvalidArgument);
}
