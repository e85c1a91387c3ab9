#include "lockstep/transformer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/beam_search.h"
#include "lockstep/error.h"
#include "tests/support/refusal.h"

using namespace lockstep;
using lockstep::testing::refusal;

namespace {

constexpr TransformerConfig kSmall = {.source_vocab_size = 31,
                                      .target_vocab_size = 29,
                                      .source_seq_len = 12,
                                      .target_seq_len = 10,
                                      .d_model = 16,
                                      .layers = 2,
                                      .heads = 4,
                                      .d_ff = 24};

at::Tensor row(const std::vector<std::int64_t>& tokens) {
  return torch::tensor(tokens, torch::kLong).unsqueeze(0);
}

}  // namespace

TEST(Transformer, a_token_does_not_see_those_that_follow_nor_padding) {
  Transformer model(kSmall);
  model->eval();
  const at::Tensor source = row({2, 7, 8, 9, 3}), target = row({2, 5, 6, 7});
  const at::Tensor logits = model->forward(source, target);
  const at::Tensor other_end = model->forward(source, row({2, 5, 6, 20}));
  EXPECT_TRUE(torch::allclose(logits.narrow(1, 0, 3), other_end.narrow(1, 0, 3)));
  EXPECT_FALSE(torch::allclose(logits.select(1, 3), other_end.select(1, 3)));
  const at::Tensor padded = model->forward(row({2, 7, 8, 9, 3, 1, 1}), row({2, 5, 6, 7, 1}));
  EXPECT_TRUE(torch::allclose(logits, padded.narrow(1, 0, 4), 1e-5, 1e-6));
  EXPECT_FALSE(torch::allclose(logits, model->forward(row({2, 7, 8, 10, 3}), target)));
}

TEST(Transformer, the_initial_weights_depend_on_the_seed_alone) {
  const Transformer first(kSmall, {.seed = 3}), second(kSmall, {.seed = 3});
  const Transformer other(kSmall, {.seed = 4});
  const auto same = [](const Transformer& a, const Transformer& b) {
    return torch::equal(a->parameters()[0], b->parameters()[0]);
  };
  EXPECT_TRUE(same(first, second));
  EXPECT_FALSE(same(first, other));
}

TEST(Transformer, a_clone_has_weights_of_its_own) {
  Transformer model(kSmall, {.seed = 1});
  model->eval();
  const auto copy = std::dynamic_pointer_cast<TransformerImpl>(model->clone());
  const at::Tensor source = row({2, 7, 3}), target = row({2, 5});
  const at::Tensor before = model->forward(source, target);
  EXPECT_TRUE(torch::equal(copy->forward(source, target), before));
  const torch::NoGradGuard no_graph;
  for (at::Tensor& parameter : model->parameters()) parameter.zero_();
  EXPECT_TRUE(torch::equal(copy->forward(source, target), before));
}

TEST(Transformer, dropout_works_in_training_alone) {
  TransformerConfig config = kSmall;
  config.dropout = 0.5;
  Transformer model(config);
  const at::Tensor source = row({2, 7, 8, 3}), target = row({2, 5});
  EXPECT_FALSE(torch::equal(model->forward(source, target), model->forward(source, target)));
  model->eval();
  EXPECT_TRUE(torch::equal(model->forward(source, target), model->forward(source, target)));
}

TEST(Transformer, what_does_not_fit_is_refused_with_its_value) {
  const auto made = [](auto change) {
    TransformerConfig config = kSmall;
    change(config);
    return refusal([&] { Transformer model(config); });
  };
  EXPECT_EQ(made([](auto& config) { config.d_model = 18; }),
            "Transformer: d_model is 18; it must be a multiple of heads, which is 4");
  EXPECT_NE(made([](auto& config) { config.layers = 0; }).find("layers is 0"), std::string::npos);
  EXPECT_NE(made([](auto& config) { config.dropout = 1; }).find("dropout is 1"), std::string::npos);
  EXPECT_NE(made([](auto& config) { config.pad_id = 29; }).find("pad_id"), std::string::npos);
  Transformer model(kSmall);
  EXPECT_NE(refusal([&] {
              model->encode(row({2, 31}));
            }).find("token 31 of source"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              model->encode(row(std::vector<std::int64_t>(13, 5)));
            }).find("has 13 tokens in a row; the model has positions for 12"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              search_targets(model, {{2, 3}}, {.beam = 0});
            }).find("beam is 0"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              search_targets(model, {{2}, {}});
            }).find("source 1 is empty"),
            std::string::npos);
}

TEST(BeamSearch, neighbours_and_the_cache_make_no_difference) {
  Transformer model(kSmall, {.seed = 9});
  const std::vector<std::vector<std::int32_t>> sources = {{2, 7, 3}, {2, 8, 9, 10, 11, 3}, {2, 3}};
  for (const std::int64_t beam : {1, 3}) {
    const auto together = search_targets(model, sources, {.beam = beam});
    const auto slowly = search_targets(model, sources, {.beam = beam, .use_cache = false});
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const auto alone = search_targets(model, {sources[i]}, {.beam = beam});
      EXPECT_EQ(together[i].tokens, alone[0].tokens);
      EXPECT_EQ(together[i].tokens, slowly[i].tokens);
      EXPECT_NEAR(together[i].log_probability, slowly[i].log_probability, 1e-4);
      EXPECT_LE(together[i].tokens.size(), 10u);
    }
  }
  EXPECT_TRUE(model->is_training()) << "the mode is what it was";
  EXPECT_TRUE(search_targets(model, {}).empty());
}
