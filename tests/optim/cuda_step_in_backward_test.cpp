#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/autocast.h"
#include "lockstep/gpt2.h"
#include "lockstep/graphed_step.h"
#include "lockstep/optimizer.h"
#include "optim/step_in_backward.h"
#include "optim/weight_copies.h"

// Updates on a stream of their own beside backward, on a GPU.
using namespace lockstep;

namespace {

/// Copies of a model's parameters that get the very gradients of each backward, and a step after
/// it: attention adds in no fixed order, so that two backwards would not have the same bits.
class Follower {
 public:
  Follower(const torch::nn::Module& module, const AdamWOptions& options) {
    std::vector<ParamGroup> groups = decay_groups(module, 0.1);
    for (ParamGroup& group : groups) {
      for (NamedParameter& parameter : group.parameters) {
        const at::Tensor copy = parameter.tensor.detach().clone().requires_grad_();
        parameter.tensor.register_hook(
            [copy](const at::Tensor& gradient) { copy.mutable_grad() = gradient.clone(); });
        parameter.tensor = copy;
      }
    }
    optimizer_ = std::make_unique<AdamW>(std::move(groups), options);
  }

  void step() {
    optimizer_->step();
    optimizer_->zero_grad();
  }

  const Optimizer& optimizer() const { return *optimizer_; }

 private:
  std::unique_ptr<Optimizer> optimizer_;
};

std::vector<std::string> differences(const Optimizer& left, const Optimizer& right) {
  std::vector<std::string> names;
  const auto ours = left.parameters(), theirs = right.parameters();
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    if (!ours[i].tensor.equal(theirs[i].tensor)) names.push_back(theirs[i].name);
  }
  const State state = right.state();
  for (const auto& [name, tensor] : left.state().tensors) {
    if (!tensor.equal(state.tensors.at(name))) names.push_back(name);
  }
  return names;
}

const std::vector<std::string> kNone;

}  // namespace

// Large matrices, so that an update is still running when the next gradients are computed; freed
// memory would be written by then.
TEST(CudaStepInBackward, has_the_bits_of_a_step_after_backward) {
  torch::manual_seed(2);
  torch::nn::Sequential net;
  for (int i = 0; i < 6; ++i) net->push_back(torch::nn::Linear(2048, 2048));
  net->to(torch::kCUDA);
  AdamW optimizer(decay_groups(*net, 0.1), {.lr = 1e-3});
  Follower follower(*net, {.lr = 1e-3});
  StepInBackward updates(optimizer, {.update_bytes = 20 << 20});
  const at::Tensor x = torch::randn({64, 2048}, torch::kCUDA);
  for (int step = 0; step < 30; ++step) {
    updates.backward(net->forward(x).square().mean());
    follower.step();
    ASSERT_EQ(differences(optimizer, follower.optimizer()), kNone) << "step " << step;
  }
}

// Three steps as they are, one recorded, the others replayed; the model computes with bfloat16
// copies that the updates write.
TEST(CudaStepInBackward, is_recorded_in_a_graph_with_the_copies_of_weights) {
  Gpt2 model({.vocab_size = 1003,
              .n_positions = 160,
              .n_embd = 128,
              .n_layer = 3,
              .n_head = 2,
              .embd_pdrop = 0,
              .attn_pdrop = 0,
              .resid_pdrop = 0},
             Gpt2Options{.fused = true, .seed = 3});
  model->to(torch::kCUDA);
  torch::manual_seed(7);
  const at::Tensor ids = torch::randint(1003, {4, 64}, torch::kLong).cuda();
  const at::Tensor labels = ids.roll(-1, 1);
  AdamW optimizer(decay_groups(*model, 0.1), {.lr = 1e-3});
  Follower follower(*model, {.lr = 1e-3});
  StepInBackward updates(optimizer, {.update_bytes = 300'000});
  std::vector<std::shared_ptr<WeightCopy>> copies;
  at::Tensor loss;
  GraphedStep step([&] {
    Gpt2Loss found;
    {
      const Autocast autocast({.device_type = at::kCUDA, .dtype = at::kBFloat16});
      found = model->forward(ids, labels);
    }
    loss = (found.sum / 256).detach();
    updates.backward(found.sum / 256);
    follower.step();
    copies.clear();
    for (const NamedParameter& parameter : optimizer.parameters()) {
      copies.push_back(kept_copy_of(parameter.tensor));
    }
  });
  double first = 0;
  for (int i = 0; i < 12; ++i) {
    step.run();
    EXPECT_EQ(step.is_recorded(), i >= 3);
    ASSERT_EQ(differences(optimizer, follower.optimizer()), kNone) << "step " << i;
    for (const auto& copy : copies) {
      ASSERT_TRUE(copy != nullptr && copy->is_current()) << "step " << i;
      ASSERT_TRUE(copy->copy.equal(copy->weight.to(at::kBFloat16))) << "step " << i;
    }
    if (i == 0) first = loss.item<double>();
  }
  EXPECT_LT(loss.item<double>(), 0.9 * first);  // it learns
  EXPECT_EQ(optimizer.state().tensors.at("wte.weight.step").item<float>(), 12);
}

TEST(CudaStepInBackward, begins_anew_after_a_failure_in_backward) {
  torch::manual_seed(2);
  torch::nn::Sequential net(torch::nn::Linear(512, 512), torch::nn::Linear(512, 512),
                            torch::nn::Linear(512, 512));
  net->to(torch::kCUDA);
  AdamW optimizer(decay_groups(*net, 0.1), {.lr = 1e-3});
  StepInBackward updates(optimizer, {.update_bytes = 0});
  const at::Tensor x = torch::randn({64, 512}, torch::kCUDA);
  bool fail = true;
  const at::Tensor lowest = net->parameters()[0];
  lowest.register_hook([&](const at::Tensor&) {
    if (fail) throw std::runtime_error("the cable is out");
  });
  EXPECT_ANY_THROW(updates.backward(net->forward(x).square().mean()));
  fail = false;
  for (const NamedParameter& parameter : optimizer.parameters()) {
    EXPECT_FALSE(parameter.tensor.grad().defined()) << parameter.name;
  }
  const at::Tensor before = lowest.detach().clone();
  updates.backward(net->forward(x).square().mean());
  EXPECT_FALSE(lowest.equal(before));
}
