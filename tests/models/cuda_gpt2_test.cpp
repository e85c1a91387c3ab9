#include <optional>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/autocast.h"
#include "lockstep/generate.h"
#include "lockstep/gpt2.h"
#include "tests/models/apart.h"

// GPT-2 on a GPU, where attention, softmax and random numbers come from other kernels.
using namespace lockstep;
using lockstep::testing::apart;

namespace {

Gpt2Config cuda_config(double dropout) {
  return {.vocab_size = 203,
          .n_positions = 64,
          .n_embd = 64,
          .n_layer = 2,
          .n_head = 2,
          .embd_pdrop = dropout,
          .attn_pdrop = dropout,
          .resid_pdrop = dropout};
}

Gpt2 on_gpu(double dropout, const Gpt2Options& options) {
  Gpt2 model(cuda_config(dropout), options);
  model->to(torch::kCUDA);
  return model;
}

struct CudaBatch {
  at::Tensor ids = torch::randint(203, {4, 64}, torch::kLong);
  at::Tensor labels = torch::randint(203, {4, 64}, torch::kLong);
};

std::vector<at::Tensor> cuda_gradients(Gpt2& model, const CudaBatch& batch,
                                       std::optional<at::ScalarType> autocast = std::nullopt) {
  torch::manual_seed(5);
  Gpt2Loss loss;
  {
    std::optional<Autocast> guard;
    if (autocast) {
      guard.emplace(AutocastOptions{.device_type = at::kCUDA, .dtype = *autocast});
    }
    loss = model->forward(batch.ids.to(torch::kCUDA), batch.labels.to(torch::kCUDA));
  }
  (loss.sum / loss.count).backward();
  std::vector<at::Tensor> gradients = {loss.sum.detach()};
  for (const at::Tensor& parameter : model->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

}  // namespace

TEST(Gpt2OnGpu, computes_what_the_cpu_does) {
  Gpt2 host(cuda_config(0), Gpt2Options{.seed = 1});
  Gpt2 device = on_gpu(0, {.pad_vocab_to_multiple_of = 64, .seed = 1});
  CudaBatch batch;
  batch.labels.narrow(1, 0, 10).fill_(kIgnoredLabel);
  const auto found = cuda_gradients(device, batch);
  const Gpt2Loss loss = host->forward(batch.ids, batch.labels);
  (loss.sum / loss.count).backward();
  EXPECT_NEAR(found[0].item<double>() / loss.sum.item<double>(), 1, 1e-4);
  const auto parameters = host->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_LT(apart(found[i + 1].cpu(), parameters[i].grad()), 2e-3) << i;
  }
}

TEST(Gpt2OnGpu, checkpointing_draws_the_same_dropout) {
  const CudaBatch batch;
  for (const auto type : {std::optional<at::ScalarType>(), std::optional(at::kBFloat16)}) {
    Gpt2 plain = on_gpu(0.2, {.seed = 1});
    Gpt2 checkpointed = on_gpu(0.2, {.activation_checkpointing = true, .seed = 1});
    const auto expected = cuda_gradients(plain, batch, type);
    const auto found = cuda_gradients(checkpointed, batch, type);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_LT(apart(found[i].to(at::kFloat), expected[i].to(at::kFloat)), 1e-2) << i;
    }
  }
}

TEST(Gpt2OnGpu, bfloat16_weights_learn) {
  Gpt2 model = on_gpu(0, {.seed = 1});
  model->to(torch::kBFloat16);
  const CudaBatch batch;
  const double first = cuda_gradients(model, batch)[0].item<double>();
  for (int step = 0; step < 20; ++step) {
    const torch::NoGradGuard no_graph;
    for (at::Tensor& parameter : model->parameters()) {
      parameter.sub_(parameter.grad(), 0.5);
      parameter.mutable_grad() = at::Tensor();
    }
    const torch::AutoGradMode graph(true);
    cuda_gradients(model, batch);
  }
  model->zero_grad();
  EXPECT_LT(cuda_gradients(model, batch)[0].item<double>(), 0.9 * first);
}

TEST(Gpt2OnGpu, generation_with_and_without_a_cache_agrees) {
  Gpt2Config config = cuda_config(0);
  config.initializer_range = 0.3;
  Gpt2 model(config, Gpt2Options{.seed = 2});
  model->to(torch::kCUDA);
  GenerateOptions options{.max_new_tokens = 20, .temperature = 0};
  const auto with = generate(model, {{1, 2, 3}, {4}}, options);
  options.use_cache = false;
  const auto without = generate(model, {{1, 2, 3}, {4}}, options);
  for (std::size_t i = 0; i < with.size(); ++i) EXPECT_EQ(with[i].tokens, without[i].tokens);
}
