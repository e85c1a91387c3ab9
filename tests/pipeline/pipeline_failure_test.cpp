#include <algorithm>
#include <chrono>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "lockstep/mesh.h"
#include "lockstep/pipeline.h"
#include "lockstep/world.h"
#include "tests/pipeline/chain_model.h"
#include "tests/support/ranks.h"
#include "tests/support/survivors.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// The victim dies in the middle of a step; each survivor is told who it was.
void lose_a_stage(World& world, const ProcessGroup& group, const PipelineOptions& more,
                  int victim) {
  int forwards = 0;
  std::vector<PipelinePart> parts;
  for (int i = 0; i < 4; ++i) {
    parts.push_back({"layer" + std::to_string(i), [&] {
                       return model_part(torch::nn::Linear(64, 64),
                                         [&](auto& linear, const Tensors& x) {
                                           if (world.rank() == victim && ++forwards == 11) {
                                             kill_this_process();
                                           }
                                           return torch::tanh(linear.forward(x[0]));
                                         });
                     }});
  }
  PipelineOptions options = more;
  options.micro_batches = 4;
  options.loss = chain_loss;
  Pipeline pipeline(group, parts, options);
  const Tensors x{torch::ones({8, 64})};
  try {
    for (int step = 0; step < 10; ++step) pipeline.train_step(x, x);
    FAIL() << "nothing was thrown";
  } catch (const PeerLost& lost) {
    const std::string text = lost.what();
    EXPECT_EQ(lost.rank(), world.rank());
    EXPECT_EQ(text.rfind(concat("Pipeline: stage ", pipeline.stage(), " of "), 0), 0u) << text;
    const auto& ranks = group.global_ranks();
    const auto place = std::ranges::find(ranks, victim);
    if (place != ranks.end()) {
      EXPECT_EQ(lost.peers(), std::vector<int>{victim}) << text;
      EXPECT_NE(text.find(concat("lost rank ", victim, ", stage ", place - ranks.begin())),
                std::string::npos)
          << text;
    }
  }
  await_survivors(world, {victim});
}

}  // namespace

RANKS_TEST_WITH(PipelineFailure, of_the_middle_stage, {.count = 3, .killed = {1}}) {
  World world = init();
  lose_a_stage(world, world.group(), {}, 1);
}
RANKS_TEST_WITH(PipelineFailure, of_the_last_stage_reaches_the_first, {.count = 4, .killed = {3}}) {
  World world = init();
  lose_a_stage(world, world.group(), {}, 3);
}
RANKS_TEST_WITH(PipelineFailure, of_the_first_stage_over_gloo, {.count = 3, .killed = {0}}) {
  World world = init({.backend = "gloo"});
  lose_a_stage(world, world.group(), {}, 0);
}
RANKS_TEST_WITH(PipelineFailure, reaches_the_other_pipelines, {.count = 4, .killed = {2}}) {
  World world = init();
  Mesh mesh(world, {{"pipeline", 2}, {"data", 2}});
  lose_a_stage(world, mesh.group("pipeline"), {.data_group = mesh.group("data")}, 2);
}
