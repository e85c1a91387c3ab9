#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kernels/tile_attention.h"
#include "lockstep/autocast.h"
#include "lockstep/gpt2.h"
#include "lockstep/graphed_step.h"
#include "lockstep/optimizer.h"
#include "tests/kernels/tensors.h"
#include "tests/support/said.h"

// The fused path of GPT-2 against ATen's operators, on a GPU.
using namespace lockstep;
using lockstep::testing::relative_error;
using lockstep::testing::said_by;

namespace {

// Of 48 sequences of 128 tokens the head and attention are by our own tiles, where the GPU is a
// Hopper; of a few they are the libraries'.
Gpt2Config small_config() {
  return {.vocab_size = 1500,
          .n_positions = 160,
          .n_embd = 128,
          .n_layer = 3,
          .n_head = 2,
          .embd_pdrop = 0,
          .attn_pdrop = 0,
          .resid_pdrop = 0};
}

Gpt2 small_model(bool fused, const Gpt2Config& config = small_config(), bool checkpoint = false) {
  Gpt2 model(config,
             Gpt2Options{.activation_checkpointing = checkpoint, .fused = fused, .seed = 3});
  model->to(torch::kCUDA);
  return model;
}

struct Tokens {
  at::Tensor ids, labels;
};

Tokens some_tokens(std::int64_t batch, std::int64_t length, std::int64_t vocabulary = 1500) {
  torch::manual_seed(7);
  Tokens tokens{.ids = torch::randint(vocabulary, {batch, length}, torch::kLong).cuda(),
                .labels = torch::randint(vocabulary, {batch, length}, torch::kLong).cuda()};
  tokens.labels.index_put_({torch::indexing::Slice(), torch::indexing::Slice(0, 5)}, kIgnoredLabel);
  return tokens;
}

enum class Compute { float32, bfloat16 };

// The mean loss and all gradients.
std::vector<at::Tensor> gradients_of(Gpt2& model, const Tokens& tokens, Compute compute) {
  model->zero_grad();
  Gpt2Loss loss;
  {
    std::optional<Autocast> autocast;
    if (compute == Compute::bfloat16) {
      autocast.emplace(AutocastOptions{.device_type = at::kCUDA, .dtype = at::kBFloat16});
    }
    loss = model->forward(tokens.ids, tokens.labels);
  }
  EXPECT_EQ(loss.count, static_cast<double>(tokens.labels.ne(kIgnoredLabel).sum().item<long>()));
  const at::Tensor mean = loss.sum / loss.count;
  mean.backward();
  std::vector<at::Tensor> found = {mean.detach()};
  for (const at::Tensor& parameter : model->parameters()) found.push_back(parameter.grad().clone());
  return found;
}

// Whether attention of small_config()'s heads is by our own kernels, whose sums have an order;
// cuDNN's have none.
bool has_ordered_sums(std::int64_t batch, std::int64_t tokens) {
  return kernels::suits_tile_attention(
      {.batch = batch, .tokens = tokens, .heads = 2, .head_size = 64, .scale = 0.125f});
}

// Against float32: near, and no further than ATen's operators under autocast, with some room.
void expect_near(const Gpt2Config& config, std::int64_t batch, std::int64_t length) {
  Gpt2 fused = small_model(true, config), plain = small_model(false, config);
  const Tokens tokens = some_tokens(batch, length, config.vocab_size);
  const auto exact = gradients_of(plain, tokens, Compute::float32);
  const auto rounded = gradients_of(plain, tokens, Compute::bfloat16);
  const auto ours = gradients_of(fused, tokens, Compute::bfloat16);
  const auto names = plain->named_parameters().keys();
  EXPECT_NEAR(ours[0].item<double>(), exact[0].item<double>(), 2e-3 * exact[0].item<double>());
  for (std::size_t i = 1; i < exact.size(); ++i) {
    const double limit = std::max(2 * relative_error(rounded[i], exact[i]), 0.02);
    EXPECT_LE(relative_error(ours[i], exact[i]), limit) << names[i - 1];
  }
}

}  // namespace

TEST(FusedGpt2, has_the_gradients_of_float32_as_nearly_as_aten) {
  expect_near(small_config(), 4, 128);
  expect_near(small_config(), 48, 128);
}

TEST(FusedGpt2, takes_odd_shapes) {
  expect_near(small_config(), 3, 37);
  expect_near(small_config(), 1, 160);
}

// More tokens than the shared memory of a GPU has room for, and a width that our own tiles, which
// need no room, do not take.
TEST(FusedGpt2, takes_a_vocabulary_of_any_size) {
  Gpt2Config config = small_config();
  config.vocab_size = 120001;
  config.n_embd = 160;
  config.n_head = 5;
  expect_near(config, 2, 32);
}

TEST(FusedGpt2, takes_a_head_of_its_own_and_scaled_layers) {
  Gpt2Config config = small_config();
  config.tie_word_embeddings = false;
  config.scale_attn_by_inverse_layer_idx = true;
  expect_near(config, 2, 64);
  expect_near(config, 48, 128);
}

// What is computed again in backward has the same bits.
TEST(FusedGpt2, recomputes_blocks_where_activations_are_not_kept) {
  Gpt2 kept = small_model(true), recomputed = small_model(true, small_config(), true);
  const Tokens tokens = some_tokens(48, 128);
  const auto expected = gradients_of(kept, tokens, Compute::bfloat16);
  std::vector<at::Tensor> found;
  const auto compute = [&] { found = gradients_of(recomputed, tokens, Compute::bfloat16); };
  EXPECT_EQ(said_by(compute), "");  // it is the fused path
  EXPECT_TRUE(found[0].equal(expected[0]));
  const double limit = has_ordered_sums(48, 128) ? 0 : 5e-3;
  for (std::size_t i = 1; i < found.size(); ++i) {
    EXPECT_LE(relative_error(found[i], expected[i]), limit) << i;
  }
}

// What runs on a second stream must have what it reads, and be done before it is read: a race would
// show now and then.
TEST(FusedGpt2, has_the_same_gradients_each_time) {
  Gpt2 model = small_model(true);
  const Tokens tokens = some_tokens(48, 128);
  const auto expected = gradients_of(model, tokens, Compute::bfloat16);
  const double limit = has_ordered_sums(48, 128) ? 0 : 2e-3;
  for (int i = 0; i < 200; ++i) {
    const auto found = gradients_of(model, tokens, Compute::bfloat16);
    for (std::size_t k = 0; k < found.size(); ++k) {
      ASSERT_LE(relative_error(found[k], expected[k]), limit) << "tensor " << k << " in turn " << i;
    }
  }
}

TEST(FusedGpt2, trains_as_aten_does) {
  Gpt2 fused = small_model(true), plain = small_model(false);
  AdamW fused_optimizer(decay_groups(*fused, 0.01), {.lr = 1e-3});
  AdamW plain_optimizer(decay_groups(*plain, 0.01), {.lr = 1e-3});
  for (int step = 0; step < 50; ++step) {
    const Tokens tokens = some_tokens(4, 64);
    const double ours = gradients_of(fused, tokens, Compute::bfloat16)[0].item<double>();
    const double theirs = gradients_of(plain, tokens, Compute::bfloat16)[0].item<double>();
    EXPECT_NEAR(ours, theirs, 1e-2 * theirs) << "step " << step;
    fused_optimizer.step();
    plain_optimizer.step();
  }
}

namespace {

// What a model says of the path that it takes.
std::string said_of_path(Gpt2& model, const Tokens& tokens, at::ScalarType type = at::kBFloat16) {
  std::optional<Autocast> autocast;
  if (type != at::kFloat) {
    autocast.emplace(AutocastOptions{.device_type = at::kCUDA, .dtype = type});
  }
  std::string said = said_by([&] { model->forward(tokens.ids, tokens.labels); });
  constexpr std::string_view kBegin =
      "lockstep: this GPT-2 computes with ATen's operators, not the fused ones: ";
  if (said.empty()) return said;
  EXPECT_TRUE(said.starts_with(kBegin)) << said;
  EXPECT_TRUE(said.ends_with("\n"));
  return said.substr(kBegin.size(), said.size() - kBegin.size() - 1);
}

}  // namespace

TEST(FusedGpt2, says_once_why_another_path_is_taken) {
  Gpt2Config config = small_config();
  config.resid_pdrop = 0.5;
  Gpt2 model = small_model(true, config);
  const Tokens tokens = some_tokens(2, 32);
  EXPECT_EQ(said_of_path(model, tokens), "there is dropout");
  EXPECT_EQ(said_of_path(model, tokens), "");
  Gpt2 evaluated = small_model(true, config);
  evaluated->eval();
  EXPECT_EQ(said_of_path(evaluated, tokens), "");  // it is the fused one
  evaluated->train();
  {
    const at::NoGradGuard nothing_learns;
    EXPECT_EQ(said_of_path(evaluated, tokens), "");
  }
  EXPECT_EQ(said_of_path(evaluated, tokens), "there is dropout");
}

TEST(FusedGpt2, says_what_does_not_fit) {
  const Tokens tokens = some_tokens(2, 32);
  const auto said_with = [&](auto change) {
    Gpt2Config config = small_config();
    change(config);
    Gpt2 model = small_model(true, config);
    return said_of_path(model, tokens);
  };
  EXPECT_EQ(said_with([](Gpt2Config&) {}), "");
  EXPECT_EQ(said_with([](Gpt2Config& config) { config.activation = Gpt2Activation::relu; }),
            "the activation is not gelu_new");
  EXPECT_EQ(said_with([](Gpt2Config& config) { config.n_embd = 124; }),
            "n_embd is 124, not a multiple of 8 up to 2048");
  EXPECT_EQ(said_with([](Gpt2Config& config) { config.n_inner = 500; }),
            "n_inner is 500, not a multiple of 8");
  EXPECT_EQ(said_with([](Gpt2Config& config) { config.n_head = 32; }),
            "a head has 4 columns, not a multiple of 8 up to 128");
  EXPECT_EQ(said_with([](Gpt2Config& config) { config.vocab_size = 120001; }), "");
}

TEST(FusedGpt2, says_which_precision_does_not_fit) {
  const Tokens tokens = some_tokens(2, 32);
  const auto said_with = [&](at::ScalarType type, auto change) {
    Gpt2 model = small_model(true);
    change(model);
    return said_of_path(model, tokens, type);
  };
  const auto as_it_is = [](Gpt2&) {};
  EXPECT_EQ(said_with(at::kFloat, as_it_is), "there is no Autocast to bfloat16");
  EXPECT_EQ(said_with(at::kHalf, as_it_is), "there is no Autocast to bfloat16");
  const auto to_bf16 = [](Gpt2& model) { model->to(at::kBFloat16); };
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    EXPECT_EQ(said_with(type, to_bf16),
              "its weights are bfloat16; the precision bf16_autocast keeps them float32");
  }
  EXPECT_EQ(said_with(at::kBFloat16,
                      [](Gpt2& model) { model->parameters().back().requires_grad_(false); }),
            "not all weights are float32, in the GPU's memory and trained");
}

TEST(FusedGpt2, has_one_backward) {
  Gpt2 model = small_model(true);
  const Tokens tokens = some_tokens(2, 32);
  const Autocast autocast({.device_type = at::kCUDA, .dtype = at::kBFloat16});
  const Gpt2Loss loss = model->forward(tokens.ids, tokens.labels);
  loss.sum.backward({}, /*retain_graph=*/true);
  EXPECT_ANY_THROW(loss.sum.backward());
  const Gpt2Loss other = model->forward(tokens.ids, tokens.labels);
  {
    const at::NoGradGuard no_graph;
    for (at::Tensor& parameter : model->parameters()) parameter.mul_(2);
  }
  EXPECT_ANY_THROW(other.sum.backward());
}

namespace {

// A model and its optimizer, which learn the same tokens at each step.
struct Learner {
  explicit Learner(const Tokens& tokens)
      : tokens(tokens),
        count(static_cast<double>(tokens.labels.ne(kIgnoredLabel).sum().item<std::int64_t>())) {}

  at::Tensor step() {
    optimizer.zero_grad();
    Gpt2Loss loss;
    {
      const Autocast autocast({.device_type = at::kCUDA, .dtype = at::kBFloat16});
      loss = model->forward(tokens.ids, tokens.labels);
    }
    const at::Tensor mean = loss.sum / count;
    mean.backward();
    optimizer.step();
    return mean.detach();
  }

  Tokens tokens;
  double count;
  Gpt2 model = small_model(true);
  AdamW optimizer{decay_groups(*model, 0.01), {.lr = 1e-3}};
};

// One learner's steps are replayed, the other's are not.
struct Replayed {
  explicit Replayed(const Tokens& tokens) : graphed(tokens), plain(tokens) {}

  // The loss of a step, which both have.
  double run() {
    step.run();
    const double loss = plain.step().item<double>();
    EXPECT_NEAR(loss_of_graph.item<double>(), loss, 1e-2 * loss);
    return loss;
  }

  Learner graphed, plain;
  at::Tensor loss_of_graph;
  GraphedStep step{[this] { loss_of_graph = graphed.step(); }};
};

}  // namespace

TEST(FusedGpt2, replays_as_a_graph) {
  Replayed learners(some_tokens(4, 64));
  // The same tokens each time are learned: a graph that missed a part of the step would fall
  // behind.
  double first = 0, last = 0;
  for (int i = 0; i < 40; ++i) {
    SCOPED_TRACE(i);
    last = learners.run();
    if (i == 0) first = last;
    EXPECT_EQ(learners.step.is_recorded(), i >= 3);
  }
  EXPECT_LT(last, 0.8 * first);

  // Weights that someone else changes between two replays are those that the next one computes
  // with.
  {
    const at::NoGradGuard no_graph;
    const auto from = small_model(true)->parameters();
    for (auto* learner : {&learners.graphed, &learners.plain}) {
      auto to = learner->model->parameters();
      for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
    }
  }
  EXPECT_NEAR(learners.run(), first, 1e-2 * first);
  for (int i = 0; i < 2; ++i) learners.run();
}

TEST(FusedGpt2, replays_its_own_tiles_as_a_graph) {
  Replayed learners(some_tokens(48, 128));
  const double first = learners.run();
  double last = first;
  for (int i = 0; i < 11; ++i) last = learners.run();
  EXPECT_TRUE(learners.step.is_recorded());
  EXPECT_LT(last, first);
}
