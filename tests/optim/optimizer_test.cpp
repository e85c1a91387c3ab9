#include "lockstep/optimizer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "tests/support/refusal.h"

using namespace lockstep;
using lockstep::testing::refusal;

namespace {

struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(5);
    first = register_module("first", torch::nn::Linear(4, 3));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({3})));
    last = register_module("last", torch::nn::Linear(3, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(norm(first(x))); }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

// Gradients that depend on the step alone, so that two models can be led the same way.
void set_gradients(const std::vector<NamedParameter>& parameters, int step) {
  torch::manual_seed(100 + step);
  for (const NamedParameter& parameter : parameters) {
    parameter.tensor.mutable_grad() = torch::randn_like(parameter.tensor);
  }
}

void train(Net& net, Optimizer& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    set_gradients(named_parameters(net), step);
    optimizer.step();
  }
}

std::map<std::string, torch::Tensor> weights(const Net& net) {
  std::map<std::string, torch::Tensor> copies;
  for (const NamedParameter& parameter : named_parameters(net)) {
    copies[parameter.name] = parameter.tensor.detach().clone();
  }
  return copies;
}

void expect_same(const std::map<std::string, torch::Tensor>& left,
                 const std::map<std::string, torch::Tensor>& right) {
  ASSERT_EQ(left.size(), right.size());
  for (const auto& [name, tensor] : left) {
    ASSERT_TRUE(right.contains(name)) << name;
    EXPECT_TRUE(torch::equal(tensor, right.at(name))) << name;
  }
}

const std::vector<OptimizerOptions> kOptions = {
    SGDOptions{.lr = 0.1},
    SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01},
    SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true},
    AdamOptions{.lr = 0.1, .weight_decay = 0.01, .amsgrad = true},
    AdamWOptions{.lr = 0.1},
};

}  // namespace

TEST(NamedParameters, lists_tied_weights_once_and_frozen_ones_never) {
  Net net;
  net.norm->bias.requires_grad_(false);
  net.register_parameter("tied", net.first->weight);
  std::vector<std::string> names;
  for (const auto& parameter : named_parameters(net)) {
    names.push_back(parameter.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"tied", "first.bias", "norm.weight", "last.weight",
                                             "last.bias"}));
}

TEST(DecayGroups, only_matrices_decay) {
  Net net;
  const auto groups = decay_groups(net, 0.3);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].parameters.size(), 2u);
  EXPECT_EQ(groups[0].weight_decay, 0.3);
  EXPECT_EQ(groups[1].parameters.size(), 4u);
  EXPECT_EQ(groups[1].weight_decay, 0.0);
}

TEST(Optimizer, a_state_that_was_loaded_goes_on_bit_for_bit) {
  for (const OptimizerOptions& options : kOptions) {
    Net straight;
    auto optimizer = make_optimizer(named_parameters(straight), options);
    train(straight, *optimizer, 0, 8);

    Net resumed;
    auto first = make_optimizer(named_parameters(resumed), options);
    train(resumed, *first, 0, 3);
    auto second = make_optimizer(named_parameters(resumed), options);
    second->load_state(first->state());
    train(resumed, *second, 3, 8);
    expect_same(weights(straight), weights(resumed));
    expect_same(optimizer->state().tensors, second->state().tensors);
  }
}

TEST(Optimizer, loading_copies_the_state) {
  Net net;
  AdamW first(named_parameters(net), {});
  train(net, first, 0, 1);
  AdamW second(named_parameters(net), {});
  second.load_state(first.state());
  const auto before = second.state().tensors.at("first.weight.exp_avg").clone();
  train(net, first, 1, 2);
  EXPECT_TRUE(torch::equal(second.state().tensors.at("first.weight.exp_avg"), before));
}

TEST(Optimizer, loading_takes_the_options_of_the_state) {
  Net net;
  AdamW first(named_parameters(net), {.lr = 0.25, .betas = {0.5, 0.75}});
  AdamW second(named_parameters(net), {});
  second.load_state(first.state());
  EXPECT_EQ(second.lr(), 0.25);
  EXPECT_EQ(second.momentum(), 0.5);
  EXPECT_EQ(second.groups()[0].initial_lr, 0.25);
}

TEST(Optimizer, a_state_that_does_not_fit_is_refused_and_changes_nothing) {
  Net net;
  Adam adam(named_parameters(net), {});
  train(net, adam, 0, 2);
  const State good = adam.state();

  State other_type = good;
  other_type.values["type"] = "SGD";
  State stranger = good;
  stranger.tensors["nobody.exp_avg"] = torch::zeros({1});
  State shape = good;
  shape.tensors["first.weight.exp_avg"] = torch::zeros({3, 5});
  State incomplete = good;
  incomplete.tensors.erase("last.bias.exp_avg_sq");
  State renamed = good;
  renamed.values["groups"][0]["params"][0] = "other";
  State more_groups = good;
  more_groups.values["groups"].push_back(good.values["groups"][0]);

  Net fresh_net;
  Adam fresh(named_parameters(fresh_net), {});
  for (const State& bad : {other_type, stranger, shape, incomplete, renamed, more_groups}) {
    EXPECT_THROW(fresh.load_state(bad), InvalidArgument);
    EXPECT_TRUE(fresh.state().tensors.empty());
  }
  EXPECT_NE(refusal([&] { fresh.load_state(stranger); }).find("nobody.exp_avg"), std::string::npos);
}

TEST(Optimizer, parameters_without_a_gradient_stay_and_get_no_state) {
  Net net;
  SGD optimizer(named_parameters(net), {.lr = 0.1, .momentum = 0.9});
  const auto before = weights(net);
  net.first->weight.mutable_grad() = torch::ones_like(net.first->weight);
  optimizer.step();
  EXPECT_EQ(optimizer.state().tensors.size(), 1u);
  const auto after = weights(net);
  EXPECT_FALSE(torch::equal(before.at("first.weight"), after.at("first.weight")));
  EXPECT_TRUE(torch::equal(before.at("last.weight"), after.at("last.weight")));
}

TEST(Optimizer, a_parameter_that_starts_later_begins_its_own_momentum) {
  auto early = torch::zeros({2}).requires_grad_();
  auto late = torch::zeros({2}).requires_grad_();
  SGD optimizer({{"early", early}, {"late", late}}, {.lr = 1, .momentum = 0.5, .dampening = 0.5});
  early.mutable_grad() = torch::ones({2});
  optimizer.step();
  late.mutable_grad() = torch::ones({2});
  optimizer.step();
  EXPECT_TRUE(torch::equal(early.detach(), torch::full({2}, -2.0)));  // 1, then 0.5 + 0.5
  EXPECT_TRUE(torch::equal(late.detach(), torch::full({2}, -1.0)));   // its first step
}

TEST(Optimizer, a_gradient_that_cannot_be_used_is_refused_before_anything_changes) {
  Net net;
  AdamW optimizer(named_parameters(net), {});
  const auto before = weights(net);
  const auto refused = [&](const torch::Tensor& gradient, const std::string& part) {
    set_gradients(named_parameters(net), 0);
    // Past autograd's own check, as a foreign kernel could leave it.
    torch::autograd::impl::get_autograd_meta(net.last->bias)->grad_ = gradient;
    const std::string message = refusal([&] { optimizer.step(); });
    EXPECT_NE(message.find("last.bias"), std::string::npos) << message;
    EXPECT_NE(message.find(part), std::string::npos) << message;
    expect_same(before, weights(net));
    EXPECT_TRUE(optimizer.state().tensors.empty());
    net.last->bias.mutable_grad().reset();
  };
  refused(torch::zeros({3}), "shape");
  refused(torch::zeros({2}, torch::kDouble), "type");
  refused(torch::zeros({2}).to_sparse(), "sparse");
}

TEST(Optimizer, gradients_in_another_layout_pair_with_the_right_elements) {
  // Python's fused CPU kernels pair them by address.
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    for (const OptimizerOptions& options : kOptions) {
      auto plain = torch::arange(12.0).reshape({3, 4}).to(type).requires_grad_();
      auto odd = plain.detach().clone().requires_grad_();
      auto one = make_optimizer({NamedParameter{"w", plain}}, options);
      auto other = make_optimizer({NamedParameter{"w", odd}}, options);
      for (int step = 0; step < 3; ++step) {
        const auto gradient = torch::randn({4, 3}).to(type).t();
        plain.mutable_grad() = gradient.contiguous();
        odd.mutable_grad() = gradient.clone();
        one->step({.grad_scale = torch::full({}, 4.0)});
        other->step({.grad_scale = torch::full({}, 4.0)});
        EXPECT_TRUE(torch::equal(odd.grad(), gradient / 4));
        EXPECT_TRUE(torch::equal(plain.grad(), odd.grad()));
      }
      EXPECT_TRUE(torch::equal(plain, odd));
    }
  }
}

TEST(Optimizer, channels_last_weights_train_as_contiguous_ones) {
  const auto start = torch::randn({4, 3, 2, 2});
  auto plain = start.clone().requires_grad_();
  auto channels_last = start.clone(torch::MemoryFormat::ChannelsLast).requires_grad_();
  AdamW one({NamedParameter{"w", plain}}, {});
  AdamW other({NamedParameter{"w", channels_last}}, {});
  for (int step = 0; step < 3; ++step) {
    const auto gradient = torch::randn_like(start);
    plain.mutable_grad() = gradient;
    channels_last.mutable_grad() = gradient.contiguous(torch::MemoryFormat::ChannelsLast);
    one.step();
    other.step();
    AdamW resumed({NamedParameter{"w", channels_last}}, {});
    resumed.load_state(one.state());  // from the other layout
    EXPECT_TRUE(
        torch::equal(resumed.state().tensors["w.exp_avg"], other.state().tensors["w.exp_avg"]));
    EXPECT_EQ(resumed.state().tensors["w.exp_avg"].strides(), channels_last.strides());
  }
  EXPECT_TRUE(torch::equal(plain, channels_last));
}

TEST(Optimizer, half_precision_parameters_train_in_every_element) {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    for (const OptimizerOptions& options : kOptions) {
      auto narrow = torch::ones({67}, type).requires_grad_();
      auto wide = torch::ones({67}).requires_grad_();
      auto one = make_optimizer({NamedParameter{"w", narrow}}, options);
      auto other = make_optimizer({NamedParameter{"w", wide}}, options);
      for (int step = 0; step < 4; ++step) {
        narrow.mutable_grad() = torch::full({67}, 0.5).to(type);
        wide.mutable_grad() = torch::full({67}, 0.5);
        one->step();
        other->step();
      }
      EXPECT_TRUE(torch::allclose(narrow.to(torch::kFloat), wide, 0.02, 0.02)) << narrow << wide;
      EXPECT_EQ(one->state().tensors.contains("w.exp_avg"), options.index() != 0);
    }
  }
}

TEST(Optimizer, found_inf_skips_a_step_without_a_trace) {
  for (const OptimizerOptions& options : kOptions) {
    Net skipped;
    Net straight;
    auto one = make_optimizer(named_parameters(skipped), options);
    auto other = make_optimizer(named_parameters(straight), options);
    for (int step = 0; step < 6; ++step) {
      set_gradients(named_parameters(skipped), step);
      const bool skip = step == 0 || step == 3;  // also a first step, which SGD treats apart
      one->step({.found_inf = torch::full({}, skip ? 1.0f : 0.0f)});
      if (!skip) {
        set_gradients(named_parameters(straight), step);
        other->step();
      }
    }
    expect_same(weights(skipped), weights(straight));
    expect_same(one->state().tensors, other->state().tensors);
  }
}

TEST(Optimizer, gradients_count_multiplied_by_a_factor) {
  for (const OptimizerOptions& options : kOptions) {
    auto one = torch::randn({3, 4}).requires_grad_();
    auto other = one.detach().clone().requires_grad_();
    auto with_factor = make_optimizer({NamedParameter{"w", one}}, options);
    auto plain = make_optimizer({NamedParameter{"w", other}}, options);
    for (int step = 0; step < 3; ++step) {
      one.mutable_grad() = torch::randn({3, 4});
      other.mutable_grad() = one.grad() * 0.3f;
      with_factor->step({.grad_factor = torch::full({}, 0.3f)});
      plain->step();
      EXPECT_TRUE(torch::equal(one, other)) << options.index();
    }
  }
}

TEST(Optimizer, a_learning_rate_on_the_device_replaces_the_groups_own) {
  for (const OptimizerOptions& options : kOptions) {
    Net tensor_lr;
    Net number_lr;
    auto one = make_optimizer(named_parameters(tensor_lr), options);
    auto other = make_optimizer(named_parameters(number_lr), options);
    other->set_lr(0, 0.5);
    for (int step = 0; step < 3; ++step) {
      set_gradients(named_parameters(tensor_lr), step);
      set_gradients(named_parameters(number_lr), step);
      one->step({.lr = {torch::full({}, 0.5)}});
      other->step();
    }
    expect_same(weights(tensor_lr), weights(number_lr));
  }
}

TEST(Optimizer, groups_train_by_their_own_options) {
  Net net;
  const auto before = weights(net);
  auto groups = decay_groups(net, 0.5);
  groups[1].lr = 0.0;
  SGD optimizer(std::move(groups), {.lr = 1});
  for (const auto& parameter : named_parameters(net)) {
    parameter.tensor.mutable_grad() = torch::zeros_like(parameter.tensor);
  }
  optimizer.step();
  const auto after = weights(net);
  EXPECT_TRUE(torch::equal(after.at("first.weight"), before.at("first.weight") * 0.5));
  EXPECT_TRUE(torch::equal(after.at("first.bias"), before.at("first.bias")));
}

TEST(Optimizer, zeroing_keeps_the_memory_of_gradients_when_asked_to) {
  Net net;
  SGD optimizer(named_parameters(net), {});
  auto bucket = torch::ones({12});
  net.first->weight.mutable_grad() = bucket.view({3, 4});
  optimizer.zero_grad({.set_to_none = false});
  EXPECT_TRUE(net.first->weight.grad().is_alias_of(bucket));
  EXPECT_EQ(bucket.sum().item<float>(), 0);
  optimizer.zero_grad();
  EXPECT_FALSE(net.first->weight.grad().defined());
}

TEST(Optimizer, python_layout_and_back) {
  for (const OptimizerOptions& options : kOptions) {
    Net net;
    auto optimizer = make_optimizer(decay_groups(net, 0.1), options);
    train(net, *optimizer, 0, 2);
    const State state = optimizer->state();
    const PythonOptimizerState python = to_python(state);
    ASSERT_EQ(python.param_groups.size(), 2u);
    EXPECT_EQ(python.param_groups[1]["params"], nlohmann::json({2, 3, 4, 5}));
    EXPECT_EQ(python.param_groups[0]["fused"], true);
    auto other = make_optimizer(decay_groups(net, 0.1), options);
    other->load_state(from_python(python, *other));
    expect_same(state.tensors, other->state().tensors);
    EXPECT_EQ(state.values, other->state().values);
    PythonOptimizerState too_many = python;
    too_many.param_groups[1]["params"].push_back(6);
    EXPECT_THROW(from_python(too_many, *other), InvalidArgument);
  }
}

TEST(Optimizer, of_no_parameters_does_nothing) {
  AdamW optimizer(std::vector<NamedParameter>{}, {.lr = 0.5});
  optimizer.step();
  optimizer.zero_grad();
  EXPECT_TRUE(optimizer.parameters().empty());
  State state = optimizer.state();
  EXPECT_TRUE(state.tensors.empty());
  state.values.at("groups")[0]["lr"] = 0.25;
  optimizer.load_state(state);
  EXPECT_EQ(optimizer.lr(), 0.25);
  state.values.at("groups")[0]["params"] = {"weight"};
  EXPECT_THROW(optimizer.load_state(state), InvalidArgument);
}

TEST(Optimizer, mistakes_are_refused_with_their_value) {
  Net net;
  const auto parameters = named_parameters(net);
  const auto message = [&](const OptimizerOptions& options) {
    return refusal([&] { make_optimizer(parameters, options); });
  };
  EXPECT_NE(message(SGDOptions{.lr = -1}).find("lr is -1"), std::string::npos);
  EXPECT_NE(message(SGDOptions{.nesterov = true}).find("nesterov"), std::string::npos);
  EXPECT_NE(message(AdamOptions{.betas = {0.9, 1.0}}).find("betas[1] is 1"), std::string::npos);
  EXPECT_NE(message(AdamWOptions{.weight_decay = -0.5}).find("weight_decay"), std::string::npos);
  EXPECT_THROW(make_optimizer(std::vector<ParamGroup>{}, SGDOptions{}), InvalidArgument);
  EXPECT_THROW(SGD({{"a", parameters[0].tensor}, {"b", parameters[0].tensor}}, {}),
               InvalidArgument);
  EXPECT_THROW(SGD({{"a", parameters[0].tensor}, {"a", parameters[1].tensor}}, {}),
               InvalidArgument);
  EXPECT_THROW(SGD({ParamGroup{.parameters = parameters, .eps = 1.0}}, {}), InvalidArgument);
  EXPECT_THROW(SGD(parameters, {}).lr(1), InvalidArgument);
}
