#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/gpt2_parts.h"
#include "lockstep/mesh.h"
#include "lockstep/optimizer.h"
#include "lockstep/world.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

constexpr std::int64_t kVocabulary = 101;

Gpt2 tiny_gpt2(bool tied, bool checkpointing = false) {
  Gpt2Config config;
  config.vocab_size = kVocabulary;
  config.n_positions = 24;
  config.n_embd = 36;
  config.n_layer = 4;
  config.n_head = 3;
  config.tie_word_embeddings = tied;
  Gpt2 model(config, {.activation_checkpointing = checkpointing, .seed = 5});
  model->set_dropout(0);
  return model;
}

struct IdsAndLabels {
  at::Tensor ids, labels;
};

IdsAndLabels tokens_of(int step) {
  torch::manual_seed(50 + step);
  const at::Tensor ids = torch::randint(kVocabulary, {6, 20}, torch::kLong);
  at::Tensor labels = ids.roll(-1, 1);
  labels.select(1, 19).fill_(kIgnoredLabel);
  return {ids, labels};
}

// The whole model in one process, with as many micro-batches.
double train_whole(Gpt2& model, int step, int micro_batches) {
  const auto [ids, labels] = tokens_of(step);
  const std::int64_t rows = ids.size(0) / micro_batches;
  double sum = 0;
  for (int i = 0; i < micro_batches; ++i) {
    const at::Tensor logits = model->forward(ids.narrow(0, i * rows, rows));
    const at::Tensor loss = gpt2_parts_loss({logits}, {labels.narrow(0, i * rows, rows)}) *
                            (static_cast<double>(rows) / static_cast<double>(ids.size(0)));
    loss.backward();
    sum += loss.item<double>();
  }
  return sum;
}

// "h3.attn.c_attn.weight" is the model's "h.3.attn.c_attn.weight".
std::string name_in_model(const std::string& name, bool tied) {
  if (name == "head.wte.weight" && tied) return "wte.weight";
  const std::size_t dot = name.find('.');
  const std::string part = name.substr(0, dot), rest = name.substr(dot + 1);
  return part[0] == 'h' && part != "head" ? "h." + part.substr(1) + "." + rest : rest;
}

void expect_gpt2_of_one_process(World& world, bool tied, int micro_batches,
                                PipelineSchedule schedule, TieSum tie_sum = TieSum::each_step) {
  SCOPED_TRACE(concat(tied ? "tied" : "not tied", ", ", micro_batches, " micro-batches"));
  Gpt2 whole = tiny_gpt2(tied);
  AdamW one(decay_groups(*whole, 0.1), {.lr = 1e-3});
  Gpt2Parts list = gpt2_parts(tiny_gpt2(tied, /*checkpointing=*/micro_batches == 3));
  Pipeline pipeline(world.group(), list.parts,
                    {.micro_batches = micro_batches,
                     .schedule = schedule,
                     .loss = gpt2_parts_loss,
                     .ties = list.ties,
                     .tie_sum = tie_sum});
  AdamW many(decay_groups(*pipeline.module(), 0.1), {.lr = 1e-3});
  const bool same_bits = !tied || micro_batches == 1 || tie_sum == TieSum::each_micro_batch;
  for (int step = 0; step < 3; ++step) {
    whole->zero_grad();
    const double expected = train_whole(whole, step, micro_batches);
    one.step();
    pipeline.zero_grad();
    const auto [ids, labels] = tokens_of(step);
    const double found = pipeline.mean_loss(pipeline.train_step({ids}, {labels}));
    many.step();
    EXPECT_NEAR(found, expected, 1e-5 * expected);
  }
  const auto expected = whole->named_parameters();
  for (const auto& item : pipeline.module()->named_parameters()) {
    const at::Tensor& same = expected[name_in_model(item.key(), tied)];
    if (same_bits) {
      EXPECT_TRUE(equal_bits(item.value(), same)) << item.key();
    } else {
      EXPECT_TRUE(torch::allclose(item.value(), same, 1e-3, 1e-5)) << item.key();
    }
  }
}

}  // namespace

RANKS_TEST(PipelineGpt2, two_stages_equal_one_process, 2) {
  World world = init();
  torch::set_num_threads(1);
  for (const bool tied : {true, false}) {
    for (const int micro_batches : {1, 3}) {
      expect_gpt2_of_one_process(world, tied, micro_batches, PipelineSchedule::gpipe);
      expect_gpt2_of_one_process(world, tied, micro_batches,
                                 PipelineSchedule::one_forward_one_backward);
    }
  }
  expect_gpt2_of_one_process(world, true, 3, PipelineSchedule::one_forward_one_backward,
                             TieSum::each_micro_batch);
}
RANKS_TEST(PipelineGpt2, four_stages_over_gloo_equal_one_process, 4) {
  World world = init({.backend = "gloo"});
  torch::set_num_threads(1);
  expect_gpt2_of_one_process(world, true, 3, PipelineSchedule::one_forward_one_backward);
  expect_gpt2_of_one_process(world, true, 1, PipelineSchedule::gpipe);
  expect_gpt2_of_one_process(world, true, 3, PipelineSchedule::gpipe, TieSum::each_micro_batch);
}

// A tied weight has the same bits however the model is divided.
RANKS_TEST(PipelineGpt2, ties_do_not_depend_on_the_stages, 3) {
  World world = init();
  torch::set_num_threads(1);
  Mesh mesh(world, {{"all", 3}, {"alone", 1}});
  std::vector<at::Tensor> tied;
  for (const char* dimension : {"all", "alone"}) {
    Gpt2Parts list = gpt2_parts(tiny_gpt2(true));
    Pipeline pipeline(mesh.group(dimension), list.parts,
                      {.micro_batches = 3, .loss = gpt2_parts_loss, .ties = list.ties});
    AdamW optimizer(decay_groups(*pipeline.module(), 0.1), {.lr = 1e-3});
    for (int step = 0; step < 3; ++step) {
      const auto [ids, labels] = tokens_of(step);
      pipeline.zero_grad();
      pipeline.train_step({ids}, {labels});
      optimizer.step();
    }
    const auto parameters = pipeline.module()->named_parameters();
    for (const char* name : {"embed.wte.weight", "head.wte.weight"}) {
      if (parameters.contains(name)) tied.push_back(parameters[name].detach());
    }
  }
  for (const at::Tensor& each : tied) EXPECT_TRUE(equal_bits(each, tied.back()));
  EXPECT_GE(tied.size(), 2u);
}

// Two steps without zero_grad() in between add up, also what is tied.
RANKS_TEST(PipelineGpt2, gradients_of_ties_accumulate_over_steps, 2) {
  World world = init();
  torch::set_num_threads(1);
  for (const TieSum tie_sum : {TieSum::each_step, TieSum::each_micro_batch}) {
    Gpt2 whole = tiny_gpt2(true);
    Gpt2Parts list = gpt2_parts(tiny_gpt2(true));
    Pipeline pipeline(
        world.group(), list.parts,
        {.micro_batches = 2, .loss = gpt2_parts_loss, .ties = list.ties, .tie_sum = tie_sum});
    for (int step = 0; step < 2; ++step) {
      train_whole(whole, step, 2);
      const auto [ids, labels] = tokens_of(step);
      pipeline.train_step({ids}, {labels});
    }
    const auto expected = whole->named_parameters();
    for (const auto& item : pipeline.module()->named_parameters()) {
      EXPECT_TRUE(torch::allclose(item.value().grad(),
                                  expected[name_in_model(item.key(), true)].grad(), 1e-4, 1e-6))
          << item.key();
    }
  }
}
