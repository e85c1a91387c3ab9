#include "train/host_random_watch.h"

#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

using lockstep::HostRandomWatch;

TEST(HostRandomWatch, sees_whatever_draws_on_the_cpu) {
  const at::Tensor values = torch::ones({4});
  const std::vector<std::pair<std::string, std::function<void()>>> draws{
      {"aten::uniform_", [] { torch::rand({1}); }},
      {"aten::normal_", [] { torch::randn({2}); }},
      {"aten::random_", [] { torch::randint(5, {2}); }},
      {"aten::randperm", [] { torch::randperm(5); }},
      {"aten::bernoulli_", [&] { torch::dropout(values, 0.5, /*train=*/true); }},
      {"aten::multinomial", [&] { torch::multinomial(values, 2); }}};
  for (const auto& [name, draw] : draws) {
    const HostRandomWatch watch;
    draw();
    EXPECT_EQ(watch.drawn_by(), name);
  }
}

TEST(HostRandomWatch, lets_all_else_pass) {
  const at::Tensor values = torch::rand({4}, at::TensorOptions().requires_grad(true));
  const HostRandomWatch watch;
  torch::dropout(values, 0.5, /*train=*/false).mul(2).sum().backward();
  torch::nn::functional::layer_norm(values, torch::nn::functional::LayerNormFuncOptions({4}));
  EXPECT_EQ(watch.drawn_by(), "");
}

TEST(HostRandomWatch, is_of_its_thread_and_of_its_time) {
  torch::rand({1});
  {
    const HostRandomWatch watch;
    std::thread([] { torch::rand({1}); }).join();
    EXPECT_EQ(watch.drawn_by(), "");
    torch::rand({1});
    EXPECT_EQ(watch.drawn_by(), "aten::uniform_");
  }
  torch::rand({1});
  const HostRandomWatch again;
  EXPECT_EQ(again.drawn_by(), "");
}
