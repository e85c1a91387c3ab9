#include "optim/step_in_backward.h"

#include <functional>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/gpt2.h"
#include "tests/support/refusal.h"

using namespace lockstep;
using lockstep::testing::refusal;

namespace {

// A head that is the embedding again, two layers in between, and a parameter that is never used.
struct TiedNet : torch::nn::Module {
  TiedNet() {
    torch::manual_seed(5);
    wte = register_module("wte", torch::nn::Embedding(11, 6));
    first = register_module("first", torch::nn::Linear(6, 6));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    second = register_module("second", torch::nn::Linear(6, 6));
    unused = register_parameter("unused", torch::ones({3}));
  }

  at::Tensor loss(int step) {
    torch::manual_seed(50 + step);
    const at::Tensor ids = torch::randint(11, {7}, torch::kLong);
    at::Tensor x = second(norm(torch::gelu(first(wte(ids)))));
    if (in_the_middle) x.register_hook(in_the_middle);
    return torch::nn::functional::cross_entropy(torch::matmul(x, wte->weight.t()), ids.roll(1));
  }

  torch::nn::Embedding wte{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  at::Tensor unused;
  std::function<void(at::Tensor)> in_the_middle;  // of backward
};

const std::vector<OptimizerOptions> kWays = {
    SGDOptions{.lr = 0.1},
    SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01},
    AdamOptions{.lr = 0.1, .weight_decay = 0.01, .amsgrad = true},
    AdamWOptions{.lr = 0.1},
};

void expect_same_state(const Optimizer& left, const Optimizer& right) {
  const auto theirs = right.parameters();
  ASSERT_EQ(left.parameters().size(), theirs.size());
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    EXPECT_TRUE(torch::equal(left.parameters()[i].tensor, theirs[i].tensor)) << theirs[i].name;
  }
  const State ours = left.state(), other = right.state();
  ASSERT_EQ(ours.tensors.size(), other.tensors.size());
  for (const auto& [name, tensor] : ours.tensors) {
    EXPECT_TRUE(torch::equal(tensor, other.tensors.at(name))) << name;
  }
}

std::size_t gradients_in(const Optimizer& optimizer) {
  std::size_t count = 0;
  for (const NamedParameter& parameter : optimizer.parameters()) {
    if (parameter.tensor.grad().defined()) ++count;
  }
  return count;
}

void step_afterwards(const at::Tensor& loss, Optimizer& optimizer) {
  loss.backward();
  optimizer.step();
  optimizer.zero_grad();
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing is thrown";
}

}  // namespace

TEST(StepInBackward, has_the_bits_of_a_step_after_backward) {
  for (const OptimizerOptions& way : kWays) {
    for (const std::int64_t bytes : {0, 200, 1 << 20}) {
      TiedNet ours, theirs;
      const auto optimizer = make_optimizer(decay_groups(ours, 0.01), way);
      const auto expected = make_optimizer(decay_groups(theirs, 0.01), way);
      StepInBackward updates(*optimizer, {.update_bytes = bytes});
      for (int step = 0; step < 5; ++step) {
        for (Optimizer* each : {optimizer.get(), expected.get()}) each->set_lr(1, 0.1 / (step + 1));
        updates.backward(ours.loss(step));
        step_afterwards(theirs.loss(step), *expected);
        EXPECT_EQ(gradients_in(*optimizer), 0u);
      }
      expect_same_state(*optimizer, *expected);
      EXPECT_TRUE(torch::equal(ours.unused, torch::ones({3})));
    }
  }
}

TEST(StepInBackward, takes_the_learning_rate_from_a_tensor) {
  TiedNet ours, theirs;
  AdamW optimizer(named_parameters(ours), {.lr = 7}), expected(named_parameters(theirs), {});
  const at::Tensor rate = torch::full({}, 0.25f);
  StepInBackward updates(optimizer, {.update_bytes = 0, .lr = {rate}});
  for (int step = 0; step < 3; ++step) {
    rate.fill_(0.5 / (1 << step));
    expected.set_lr(0, 0.5 / (1 << step));
    updates.backward(ours.loss(step));
    step_afterwards(theirs.loss(step), expected);
  }
  expect_same_state(optimizer, expected);
}

TEST(StepInBackward, trains_gpt2_to_the_same_bits) {
  const Gpt2Config config{.vocab_size = 53,
                          .n_positions = 16,
                          .n_embd = 16,
                          .n_layer = 3,
                          .n_head = 2,
                          .embd_pdrop = 0,
                          .attn_pdrop = 0,
                          .resid_pdrop = 0};
  for (const bool checkpoint : {false, true}) {
    Gpt2 ours(config, {.activation_checkpointing = checkpoint, .seed = 3});
    Gpt2 theirs(config, {.activation_checkpointing = checkpoint, .seed = 3});
    AdamW optimizer(decay_groups(*ours, 0.1), {}), expected(decay_groups(*theirs, 0.1), {});
    StepInBackward updates(optimizer, {.update_bytes = 8000});
    for (int step = 0; step < 5; ++step) {
      torch::manual_seed(step);
      const at::Tensor ids = torch::randint(53, {2, 16}, torch::kLong);
      updates.backward(ours->forward(ids, ids.roll(-1, 1)).sum);
      step_afterwards(theirs->forward(ids, ids.roll(-1, 1)).sum, expected);
    }
    expect_same_state(optimizer, expected);
  }
}

// By the time the gradient of the lower layer's bias comes, the upper ones have had their updates.
TEST(StepInBackward, updates_and_frees_as_backward_goes_on) {
  for (const bool at_once : {true, false}) {
    TiedNet net;
    AdamW optimizer(named_parameters(net), {});
    StepInBackward updates(optimizer, {.update_bytes = at_once ? 0 : 1 << 20});
    const at::Tensor upper = net.second->weight.detach().clone();
    std::size_t gradients = 99;
    bool has_changed = false;
    net.first->bias.register_hook([&](const at::Tensor&) {
      gradients = gradients_in(optimizer);
      has_changed = !torch::equal(net.second->weight, upper);
    });
    updates.backward(net.loss(0));
    EXPECT_EQ(has_changed, at_once);
    if (at_once) {
      EXPECT_EQ(gradients, 0u);
    } else {
      EXPECT_GE(gradients, 4u);  // the upper layer's and the norm's
    }
    EXPECT_FALSE(torch::equal(net.second->weight, upper));
  }
}

TEST(StepInBackward, leaves_other_backwards_alone) {
  TiedNet net;
  SGD optimizer(named_parameters(net), {});
  {
    StepInBackward updates(optimizer, {.update_bytes = 0});
    const at::Tensor before = net.second->weight.detach().clone();
    net.loss(0).backward();
    EXPECT_TRUE(torch::equal(net.second->weight, before));
    EXPECT_TRUE(net.second->weight.grad().defined());
    EXPECT_EQ(
        refusal([&] { updates.backward(net.loss(0)); }),
        "StepInBackward: parameter wte.weight has a gradient already; call zero_grad() before "
        "forward, or let Optimizer::step() take the sum of several backwards");
    EXPECT_TRUE(torch::equal(net.second->weight, before));
    EXPECT_EQ(refusal([&] { StepInBackward another(optimizer); }),
              "StepInBackward: parameter unused has someone else's hook on its gradient");
    optimizer.zero_grad();
    updates.backward(net.loss(0));
    EXPECT_FALSE(torch::equal(net.second->weight, before));
  }
  net.loss(1).backward();
  EXPECT_TRUE(net.second->weight.grad().defined());
}

TEST(StepInBackward, refuses_a_model_on_several_devices) {
  const at::Tensor here = torch::ones({2}).requires_grad_();
  const at::Tensor there = torch::ones({2}, torch::kMeta).requires_grad_();
  SGD optimizer({NamedParameter{"here", here}, NamedParameter{"there", there}}, {});
  StepInBackward updates(optimizer);
  EXPECT_EQ(refusal([&] { updates.backward(here.sum()); }),
            "StepInBackward: parameter there is on meta, others on cpu; a model on several devices "
            "needs Optimizer::step()");
}

TEST(StepInBackward, begins_anew_after_a_failure_in_backward) {
  TiedNet ours, theirs;
  AdamW optimizer(named_parameters(ours), {}), expected(named_parameters(theirs), {});
  // The last layer has its gradients, and the small ones of them wait for their update.
  StepInBackward updates(optimizer, {.update_bytes = 100});
  bool fail = true;
  ours.norm->bias.register_hook([&](const at::Tensor&) {
    if (std::exchange(fail, false)) throw std::runtime_error("the cable is out");
  });
  EXPECT_NE(message_of([&] { updates.backward(ours.loss(0)); }).find("the cable is out"),
            std::string::npos);
  EXPECT_EQ(gradients_in(optimizer), 0u);

  {
    const at::NoGradGuard no_graph;
    const auto from = ours.parameters();
    auto to = theirs.parameters();
    for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  }
  expected.load_state(optimizer.state());
  for (int step = 1; step < 3; ++step) {
    updates.backward(ours.loss(step));
    step_afterwards(theirs.loss(step), expected);
  }
  expect_same_state(optimizer, expected);
}

TEST(StepInBackward, says_what_the_step_refuses) {
  torch::nn::Embedding sparse(torch::nn::EmbeddingOptions(5, 3).sparse(true));
  SGD optimizer(named_parameters(*sparse), {});
  for (const std::int64_t bytes : {0, 1 << 20}) {
    StepInBackward updates(optimizer, {.update_bytes = bytes});
    const std::string said = refusal([&] {
      updates.backward(sparse(torch::tensor({1, 3})).sum());
    });
    EXPECT_NE(said.find("parameter weight has a sparse gradient"), std::string::npos) << said;
    EXPECT_EQ(gradients_in(optimizer), 0u);
  }
}

TEST(StepInBackward, refuses_a_second_gradient_in_one_backward) {
  TiedNet net;
  SGD optimizer(named_parameters(net), {});
  StepInBackward updates(optimizer, {.update_bytes = 0});
  // As a checkpoint does that computes its part again and goes backward in it.
  net.in_the_middle = [&](const at::Tensor&) {
    const at::AutoGradMode with_graph(true);
    net.first->weight.sum().backward();
  };
  const std::string said = message_of([&] { updates.backward(net.loss(0)); });
  EXPECT_NE(said.find("parameter first.weight has got a second gradient in one backward"),
            std::string::npos)
      << said;
}
