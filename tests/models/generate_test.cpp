#include "lockstep/generate.h"

#include <cmath>
#include <map>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "models/sample_token.h"

using namespace lockstep;

namespace {

using Prompts = std::vector<std::vector<std::int32_t>>;

// Large weights, so that a model that has learned nothing has opinions all the same.
Gpt2 opinionated() {
  Gpt2 model(Gpt2Config{.vocab_size = 61,
                        .n_positions = 32,
                        .n_embd = 32,
                        .n_layer = 3,
                        .n_head = 4,
                        .initializer_range = 0.3},
             {.seed = 8});
  return model;
}

const Prompts kPrompts = {{1, 2, 3, 4, 5}, {17}, {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 60}};

std::vector<std::vector<std::int32_t>> tokens_of(const std::vector<Generated>& results) {
  std::vector<std::vector<std::int32_t>> tokens;
  for (const Generated& result : results) tokens.push_back(result.tokens);
  return tokens;
}

}  // namespace

TEST(Generate, the_cache_changes_nothing_for_the_likeliest_tokens) {
  Gpt2 model = opinionated();
  const auto with = generate(model, kPrompts, {.max_new_tokens = 20, .temperature = 0});
  const auto without =
      generate(model, kPrompts, {.max_new_tokens = 20, .temperature = 0, .use_cache = false});
  EXPECT_EQ(tokens_of(with), tokens_of(without));
  EXPECT_EQ(with[0].tokens.size(), 20u);
  EXPECT_NE(with[0].tokens, with[1].tokens);
  EXPECT_TRUE(model->is_training());
}

TEST(Generate, the_cache_changes_nothing_for_drawn_tokens) {
  Gpt2 model = opinionated();
  GenerateOptions options{.max_new_tokens = 20, .temperature = 0.8, .top_k = 20, .top_p = 0.9};
  const auto with = tokens_of(generate(model, kPrompts, options));
  options.use_cache = false;
  EXPECT_EQ(tokens_of(generate(model, kPrompts, options)), with);
}

TEST(Generate, a_seed_decides_what_is_drawn) {
  Gpt2 model = opinionated();
  const auto draw = [&](std::uint64_t seed) {
    return tokens_of(generate(model, kPrompts, {.max_new_tokens = 15, .seed = seed}));
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

TEST(Generate, neighbours_do_not_matter) {
  Gpt2 model = opinionated();
  const GenerateOptions options{.max_new_tokens = 15, .seed = 3};
  EXPECT_EQ(generate(model, {kPrompts[0]}, options)[0].tokens,
            generate(model, kPrompts, options)[0].tokens);
}

TEST(Generate, a_stop_token_ends_one_sequence_and_leaves_the_others) {
  Gpt2 model = opinionated();
  const auto free = generate(model, kPrompts, {.max_new_tokens = 12, .temperature = 0});
  const std::int32_t stop = free[0].tokens[4];
  const auto stopped =
      generate(model, kPrompts, {.max_new_tokens = 12, .temperature = 0, .stop_token = stop});
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    const auto& expected = free[i].tokens;
    const auto end = std::find(expected.begin(), expected.end(), stop);
    EXPECT_EQ(stopped[i].tokens, std::vector<std::int32_t>(expected.begin(), end));
    EXPECT_EQ(stopped[i].end,
              end == expected.end() ? GenerateEnd::max_new_tokens : GenerateEnd::stop_token);
  }
  EXPECT_EQ(stopped[0].end, GenerateEnd::stop_token);
}

TEST(Generate, a_sequence_ends_where_the_positions_do) {
  Gpt2 model = opinionated();
  const auto results = generate(model, kPrompts, {.max_new_tokens = 100, .temperature = 0});
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    // The last token is predicted from n_positions tokens.
    EXPECT_EQ(kPrompts[i].size() + results[i].tokens.size(), 33u);
    EXPECT_EQ(results[i].end, GenerateEnd::n_positions);
  }
}

TEST(Generate, tokens_are_reported_as_they_come) {
  Gpt2 model = opinionated();
  std::map<std::size_t, std::vector<std::int32_t>> seen;
  const auto results = generate(
      model, kPrompts,
      {.max_new_tokens = 6,
       .on_token = [&](std::size_t prompt, std::int32_t token) { seen[prompt].push_back(token); }});
  for (std::size_t i = 0; i < kPrompts.size(); ++i) EXPECT_EQ(seen[i], results[i].tokens);
}

TEST(Generate, works_in_bfloat16_and_on_nothing) {
  Gpt2 model = opinionated();
  EXPECT_TRUE(generate(model, {}, {}).empty());
  EXPECT_TRUE(generate(model, {{1}}, {.max_new_tokens = 0})[0].tokens.empty());
  model->to(torch::kBFloat16);
  EXPECT_EQ(generate(model, {{1, 2}}, {.max_new_tokens = 5})[0].tokens.size(), 5u);
}

TEST(Generate, what_cannot_work_is_refused) {
  Gpt2 model = opinionated();
  EXPECT_THROW(generate(model, {{}}), InvalidArgument);
  EXPECT_THROW(generate(model, {{61}}), InvalidArgument);
  EXPECT_THROW(generate(model, {{-1}}), InvalidArgument);
  EXPECT_THROW(generate(model, {std::vector<std::int32_t>(33, 1)}), InvalidArgument);
  EXPECT_THROW(generate(model, {{1}}, {.temperature = -1}), InvalidArgument);
  EXPECT_THROW(generate(model, {{1}}, {.top_k = -1}), InvalidArgument);
  EXPECT_THROW(generate(model, {{1}}, {.top_p = 0}), InvalidArgument);
  EXPECT_THROW(generate(model, {{1}}, {.max_new_tokens = -1}), InvalidArgument);
}

TEST(SampleToken, frequencies_are_those_of_the_softmax) {
  const std::vector<float> logits = {std::log(1.f), std::log(2.f), std::log(5.f)};
  std::vector<int> counts(3);
  for (int i = 0; i < 800; ++i) ++counts[sample_token(logits, {}, (i + 0.5) / 800)];
  EXPECT_EQ(counts, (std::vector<int>{100, 200, 500}));
  counts.assign(3, 0);
  // At temperature 1/2 weights are squared: 1, 4, 25.
  for (int i = 0; i < 300; ++i) {
    ++counts[sample_token(logits, {.temperature = 0.5}, (i + 0.5) / 300)];
  }
  EXPECT_EQ(counts, (std::vector<int>{10, 40, 250}));
}

TEST(SampleToken, top_k_and_top_p_cut_the_tail) {
  const std::vector<float> logits = {std::log(1.f), std::log(2.f), std::log(5.f)};
  for (int i = 0; i < 100; ++i) {
    const double uniform = i / 100.0;
    EXPECT_EQ(sample_token(logits, {.temperature = 0}, uniform), 2);
    EXPECT_EQ(sample_token(logits, {.top_k = 1}, uniform), 2);
    EXPECT_NE(sample_token(logits, {.top_k = 2}, uniform), 0);
    EXPECT_EQ(sample_token(logits, {.top_p = 0.6}, uniform), 2);   // 5/8 is enough
    EXPECT_NE(sample_token(logits, {.top_p = 0.7}, uniform), 0);   // 7/8
    EXPECT_EQ(sample_token(logits, {.top_p = 1e-9}, uniform), 2);  // at least one
  }
}
