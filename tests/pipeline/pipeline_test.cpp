#include "lockstep/pipeline.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "lockstep/mesh.h"
#include "lockstep/world.h"
#include "tests/ddp/models.h"
#include "tests/pipeline/chain_model.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

constexpr int kTrainSteps = 3;

struct Case {
  PipelineSchedule schedule = PipelineSchedule::gpipe;
  int micro_batches = 1;
  std::int64_t rows = 8;
  std::vector<int> split = {};
};

std::string text_of_case(const Case& each) {
  return concat(static_cast<int>(each.schedule), ", ", each.micro_batches, " micro-batches of ",
                each.rows, " rows");
}

// Everything that this stage has equals what the reference has under the same name.
void expect_reference_bits(const torch::nn::Module& reference, const torch::nn::Module& stage) {
  const auto expected = tensors_by_name(reference);
  for (const auto& [name, found] : tensors_by_name(stage)) {
    EXPECT_TRUE(equal_bits(found, expected.at(name))) << name;
  }
}

void expect_one_process_bits(World& world, const Case& each) {
  SCOPED_TRACE(text_of_case(each));
  const auto parts = chain_parts();
  ChainReference reference(parts);
  AdamW one(named_parameters(reference.module()), {.lr = 1e-2});
  Pipeline pipeline(world.group(), parts,
                    {.micro_batches = each.micro_batches,
                     .schedule = each.schedule,
                     .split = each.split,
                     .loss = chain_loss});
  AdamW many(named_parameters(*pipeline.module()), {.lr = 1e-2});
  for (int step = 0; step < kTrainSteps; ++step) {
    const ChainBatch batch = chain_batch(step, 0, each.rows);
    reference.module().zero_grad();
    const at::Tensor expected = reference.accumulate(batch, each.micro_batches);
    one.step();
    pipeline.zero_grad();
    const PipelineResult result =
        pipeline.train_step(pipeline.is_first() ? batch.inputs : Tensors{},
                            pipeline.is_last() ? batch.targets : Tensors{});
    many.step();
    if (pipeline.is_last()) {
      EXPECT_TRUE(equal_bits(result.loss, expected)) << result.loss << expected;
    } else {
      EXPECT_FALSE(result.loss.defined());
    }
    EXPECT_EQ(pipeline.mean_loss(result), expected.item<double>());
  }
  expect_reference_bits(reference.module(), *pipeline.module());
}

void expect_one_process_bits_in_all_cases(const InitOptions& options = {}) {
  World world = init(options);
  torch::set_num_threads(1);
  for (const PipelineSchedule schedule :
       {PipelineSchedule::gpipe, PipelineSchedule::one_forward_one_backward}) {
    for (const int micro_batches : {1, 2, 3, 4, 8}) {
      expect_one_process_bits(world, {.schedule = schedule, .micro_batches = micro_batches});
    }
    expect_one_process_bits(world, {.schedule = schedule, .micro_batches = 4, .rows = 11});
  }
}

template <typename Call>
std::string refusal_text(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

RANKS_TEST(Pipeline, one_stage_has_the_bits_of_one_process, 1) {
  expect_one_process_bits_in_all_cases();
}
RANKS_TEST(Pipeline, two_stages_have_the_bits_of_one_process, 2) {
  expect_one_process_bits_in_all_cases();
}
RANKS_TEST(Pipeline, three_stages_have_the_bits_of_one_process, 3) {
  expect_one_process_bits_in_all_cases();
}
RANKS_TEST(Pipeline, four_stages_have_the_bits_of_one_process, 4) {
  expect_one_process_bits_in_all_cases();
}
RANKS_TEST(Pipeline, three_stages_over_gloo_have_the_bits_of_one_process, 3) {
  expect_one_process_bits_in_all_cases({.backend = "gloo"});
}
RANKS_TEST(Pipeline, parts_can_be_divided_by_hand, 2) {
  World world = init();
  torch::set_num_threads(1);
  expect_one_process_bits(world, {.micro_batches = 3, .split = {1, 4}});
}

// Two pipelines of two stages equal one process that takes both batches.
RANKS_TEST(Pipeline, together_with_data_parallel_has_the_bits_of_one_process, 4) {
  World world = init();
  torch::set_num_threads(1);
  Mesh mesh(world, {{"pipeline", 2}, {"data", 2}});
  const auto parts = chain_parts();
  for (const int micro_batches : {1, 3}) {
    ChainReference references[] = {ChainReference(parts), ChainReference(parts)};
    Pipeline pipeline(
        mesh.group("pipeline"), parts,
        {.micro_batches = micro_batches, .loss = chain_loss, .data_group = mesh.group("data")});
    AdamW many(named_parameters(*pipeline.module()), {.lr = 1e-2});
    AdamW first(named_parameters(references[0].module()), {.lr = 1e-2});
    AdamW second(named_parameters(references[1].module()), {.lr = 1e-2});
    for (int step = 0; step < kTrainSteps; ++step) {
      double loss = 0;
      for (int slot = 0; slot < 2; ++slot) {
        references[slot].module().zero_grad();
        loss +=
            references[slot].accumulate(chain_batch(step, slot, 7), micro_batches).item<double>();
      }
      const auto gradients = references[0].module().named_parameters();
      for (const auto& item : references[1].module().named_parameters()) {
        const at::Tensor mean = (gradients[item.key()].grad() + item.value().grad()) / 2;
        gradients[item.key()].mutable_grad() = mean;
        item.value().mutable_grad() = mean.clone();
      }
      first.step();
      second.step();
      pipeline.zero_grad();
      const ChainBatch batch = chain_batch(step, mesh.coordinate("data"), 7);
      const PipelineResult result = pipeline.train_step(batch.inputs, batch.targets);
      EXPECT_EQ(pipeline.mean_loss(result), loss / 2);
      many.step();
    }
    expect_reference_bits(references[mesh.coordinate("data")].module(), *pipeline.module());
  }
}

// Weights and what is drawn in forward depend on the part, not on the stage that has it.
RANKS_TEST(Pipeline, random_numbers_do_not_depend_on_the_stages, 3) {
  World world = init();
  torch::set_num_threads(1);
  Mesh mesh(world, {{"all", 3}, {"alone", 1}});
  std::vector<PipelinePart> parts;
  for (int i = 0; i < 4; ++i) {
    parts.push_back({"layer" + std::to_string(i), [] {
                       return model_part(
                           torch::nn::Sequential(torch::nn::Linear(6, 6), torch::nn::Dropout(0.5)));
                     }});
  }
  const PipelineOptions options{.micro_batches = 2, .loss = chain_loss, .seed = 7};
  Pipeline together(mesh.group("all"), parts, options);
  Pipeline alone(mesh.group("alone"), parts, options);
  const Tensors x{torch::ones({4, 6})};
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    const double expected = alone.mean_loss(alone.train_step(x, x));
    EXPECT_EQ(together.mean_loss(together.train_step(x, x)), expected);
    losses.push_back(expected);
  }
  EXPECT_NE(losses[0], losses[1]) << "each step draws anew";
  expect_reference_bits(*alone.module(), *together.module());
  together.set_next_step(0);
  EXPECT_EQ(together.mean_loss(together.train_step(x, x)), losses[0]);
}

RANKS_TEST(Pipeline, evaluates_without_gradients, 3) {
  World world = init();
  torch::set_num_threads(1);
  const auto parts = chain_parts();
  Mesh mesh(world, {{"all", 3}, {"alone", 1}});
  const PipelineOptions options{.micro_batches = 3, .loss = chain_loss};
  Pipeline pipeline(mesh.group("all"), parts, options);
  Pipeline alone(mesh.group("alone"), parts, options);
  pipeline.eval();
  alone.eval();
  for (int i = 0; i < 2; ++i) {
    const ChainBatch batch = chain_batch(i, 0, 10);
    EXPECT_EQ(pipeline.mean_loss(pipeline.evaluate(batch.inputs, batch.targets)),
              alone.mean_loss(alone.evaluate(batch.inputs, batch.targets)));
    const Tensors outputs = pipeline.forward(batch.inputs);
    ASSERT_EQ(outputs.size(), pipeline.is_last() ? 1u : 0u);
    if (pipeline.is_last()) {
      EXPECT_TRUE(equal_bits(outputs[0], alone.forward(batch.inputs)[0]));
      EXPECT_FALSE(outputs[0].requires_grad());
    }
    for (const at::Tensor& parameter : pipeline.module()->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
  }
}

RANKS_TEST(Pipeline, clips_the_norm_of_all_stages, 2) {
  World world = init();
  const auto parts = chain_parts();
  ChainReference reference(parts);
  const ChainBatch batch = chain_batch(0, 0, 8);
  reference.accumulate(batch, 2);
  const double expected = torch::nn::utils::clip_grad_norm_(reference.module().parameters(), 0.1);
  Pipeline pipeline(world.group(), parts, {.micro_batches = 2, .loss = chain_loss});
  pipeline.train_step(batch.inputs, batch.targets);
  EXPECT_NEAR(pipeline.clip_grad_norm(0.1), expected, 1e-5 * expected);
  const auto gradients = reference.module().named_parameters();
  for (const auto& item : pipeline.module()->named_parameters()) {
    EXPECT_TRUE(torch::allclose(item.value().grad(), gradients[item.key()].grad(), 1e-4, 1e-7));
  }
}

RANKS_TEST(Pipeline, tells_where_time_went, 2) {
  World world = init();
  Pipeline pipeline(world.group(), chain_parts(), {.micro_batches = 4, .loss = chain_loss});
  const ChainBatch batch = chain_batch(0, 0, 8);
  const auto times = pipeline.gather_times(pipeline.train_step(batch.inputs, batch.targets).times);
  ASSERT_EQ(times.size(), 2u);
  for (const PipelineTimes& each : times) {
    EXPECT_GT(each.forward, 0);
    EXPECT_GT(each.backward, 0);
    EXPECT_GE(each.step, each.computing() + each.waiting + each.sending + each.reducing);
  }
  EXPECT_GT(measured_bubble(times), 0);
  EXPECT_LT(measured_bubble(times), 1);
}

RANKS_TEST(Pipeline, refuses_what_cannot_be, 2) {
  World world = init();
  const auto parts = chain_parts();
  EXPECT_TRUE(contains(refusal_text([&] { Pipeline(world.group(), {parts[0]}, {}); }),
                       "1 parts cannot be divided among 2 stages"));
  EXPECT_TRUE(contains(refusal_text([&] {
                         Pipeline(world.group(), parts, {.split = {1, 1}});
                       }),
                       "split is 1 + 1; it must divide 5 parts among 2 stages"));
  EXPECT_TRUE(contains(
      refusal_text([&] { Pipeline(world.group(), parts, {.micro_batches = 1 + world.rank()}); }),
      "stage 1 was given '2 micro-batches"));
  EXPECT_TRUE(
      contains(refusal_text([&] {
                 Pipeline(world.group(), parts, {.ties = {{"first.table.weight", "last.weight"}}});
               }),
               "ties name 'last.weight', which is no parameter of any stage"));
  EXPECT_TRUE(contains(
      refusal_text([&] {
        Pipeline(world.group(), parts, {.ties = {{"first.table.weight", "last.head.weight"}}});
      }),
      "tied parameters differ; the first is Float [17, 13]"));
  const auto counts = parameter_counts(parts);
  EXPECT_EQ(counts[0], 17 * 13);
  EXPECT_EQ(counts[4], 13 * 3 + 3);
}

RANKS_TEST(Pipeline, refuses_targets_of_another_batch, 2) {
  World world = init();
  Pipeline pipeline(world.group(), chain_parts(), {.micro_batches = 2, .loss = chain_loss});
  const std::string said = refusal_text(
      [&] { pipeline.train_step(chain_batch(0, 0, 8).inputs, chain_batch(0, 0, 6).targets); });
  if (pipeline.is_last()) {
    EXPECT_TRUE(contains(said, "has 4 rows of inputs and 3 of targets")) << said;
  } else {
    EXPECT_NE(said, "accepted");
    EXPECT_TRUE(contains(refusal_text([&] { pipeline.train_step({}, {}); }), "earlier step"));
  }
}

RANKS_TEST(Pipeline, refuses_tensors_that_change_their_kind, 2) {
  World world = init();
  int calls = 0;
  std::vector<PipelinePart> parts{{"first",
                                   [&calls] {
                                     return model_part(torch::nn::Linear(3, 3),
                                                       [&calls](auto& linear, const Tensors& x) {
                                                         const at::Tensor y = linear.forward(x[0]);
                                                         return ++calls == 2 ? y.unsqueeze(0) : y;
                                                       });
                                   }},
                                  {"second", [] { return model_part(torch::nn::Linear(3, 3)); }}};
  Pipeline pipeline(world.group(), parts, {.micro_batches = 2, .loss = chain_loss});
  const Tensors x{torch::ones({4, 3})};
  const std::string said = refusal_text([&] { pipeline.train_step(x, x); });
  if (pipeline.is_last()) {
    EXPECT_TRUE(contains(said,
                         "micro-batch 1 brings 1 tensors (Float [1, 2, 3]); before there "
                         "were 1 tensors (Float [2, 3])"))
        << said;
  } else {
    EXPECT_NE(said, "accepted");
  }
}
