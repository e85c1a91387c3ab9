#include <cmath>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "kernels/tile_attention.h"
#include "lockstep/autocast.h"
#include "lockstep/gpt2.h"
#include "lockstep/optimizer.h"
#include "train/graphed_step.h"

// The fused path of GPT-2 against ATen's operators, on a GPU.
using namespace lockstep;

namespace {

Gpt2Config small_config() {
  return {.vocab_size = 1003,
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

Tokens some_tokens(std::int64_t batch, std::int64_t length, std::int64_t vocabulary = 1003) {
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

double fused_apart(const at::Tensor& a, const at::Tensor& exact) {
  return ((a - exact).to(at::kDouble).norm() / exact.to(at::kDouble).norm()).item<double>();
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
    const double limit = std::max(2 * fused_apart(rounded[i], exact[i]), 0.02);
    EXPECT_LE(fused_apart(ours[i], exact[i]), limit) << names[i - 1];
  }
}

}  // namespace

TEST(FusedGpt2, has_the_gradients_of_float32_as_nearly_as_aten) {
  expect_near(small_config(), 4, 128);
}

TEST(FusedGpt2, takes_odd_shapes) {
  expect_near(small_config(), 3, 37);
  expect_near(small_config(), 1, 160);
}

TEST(FusedGpt2, takes_a_head_of_its_own_and_scaled_layers) {
  Gpt2Config config = small_config();
  config.tie_word_embeddings = false;
  config.scale_attn_by_inverse_layer_idx = true;
  expect_near(config, 2, 64);
}

// What is computed again in backward has the same bits.
TEST(FusedGpt2, recomputes_blocks_where_activations_are_not_kept) {
  Gpt2 kept = small_model(true), recomputed = small_model(true, small_config(), true);
  const Tokens tokens = some_tokens(48, 128);
  const auto expected = gradients_of(kept, tokens, Compute::bfloat16);
  ::testing::internal::CaptureStderr();
  const auto found = gradients_of(recomputed, tokens, Compute::bfloat16);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");  // it is the fused path
  EXPECT_TRUE(found[0].equal(expected[0]));
  const double limit = has_ordered_sums(48, 128) ? 0 : 5e-3;
  for (std::size_t i = 1; i < found.size(); ++i) {
    EXPECT_LE(fused_apart(found[i], expected[i]), limit) << i;
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
      ASSERT_LE(fused_apart(found[k], expected[k]), limit) << "tensor " << k << " in turn " << i;
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

TEST(FusedGpt2, is_left_where_it_does_not_fit) {
  Gpt2Config config = small_config();
  config.resid_pdrop = 0.5;
  Gpt2 model = small_model(true, config);
  const Tokens tokens = some_tokens(2, 32);
  const Autocast autocast({.device_type = at::kCUDA, .dtype = at::kBFloat16});
  ::testing::internal::CaptureStderr();
  model->forward(tokens.ids, tokens.labels);
  model->forward(tokens.ids, tokens.labels);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "lockstep: this GPT-2 computes with ATen's operators, not the fused ones: there is "
            "dropout\n");
  model->eval();
  ::testing::internal::CaptureStderr();
  const at::NoGradGuard no_graph;
  model->forward(tokens.ids, tokens.labels);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
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

TEST(FusedGpt2, replays_as_a_graph) {
  Gpt2 graphed = small_model(true), plain = small_model(true);
  AdamW graphed_optimizer(decay_groups(*graphed, 0.01), {.lr = 1e-3});
  AdamW plain_optimizer(decay_groups(*plain, 0.01), {.lr = 1e-3});
  const Tokens fixed = some_tokens(4, 64);
  at::Tensor loss_of_graph;
  const auto train = [&](Gpt2& model, AdamW& optimizer) {
    optimizer.zero_grad();
    Gpt2Loss loss;
    {
      const Autocast autocast({.device_type = at::kCUDA, .dtype = at::kBFloat16});
      loss = model->forward(fixed.ids, fixed.labels);
    }
    const at::Tensor mean = loss.sum / 236;
    mean.backward();
    optimizer.step();
    return mean.detach();
  };
  GraphedStep step([&] { loss_of_graph = train(graphed, graphed_optimizer); });
  // The same tokens each time are learned: a graph that missed a part of the step would fall
  // behind.
  double first = 0, last = 0;
  for (int i = 0; i < 40; ++i) {
    step.run();
    last = train(plain, plain_optimizer).item<double>();
    if (i == 0) first = last;
    EXPECT_NEAR(loss_of_graph.item<double>(), last, 1e-2 * last) << "step " << i;
    EXPECT_EQ(step.is_recorded(), i >= 3);
  }
  EXPECT_LT(last, 0.8 * first);

  // Weights that someone else changes between two replays are those that the next one computes
  // with.
  {
    const at::NoGradGuard no_graph;
    const auto from = small_model(true)->parameters();
    for (auto* model : {&graphed, &plain}) {
      auto to = (*model)->parameters();
      for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
    }
  }
  for (int i = 0; i < 3; ++i) {
    step.run();
    last = train(plain, plain_optimizer).item<double>();
    if (i == 0) EXPECT_NEAR(last, first, 1e-2 * first);
    EXPECT_NEAR(loss_of_graph.item<double>(), last, 1e-2 * last) << "step " << i;
  }
}
