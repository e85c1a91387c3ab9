#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/autocast.h"
#include "lockstep/clip_grad.h"
#include "lockstep/ema.h"
#include "lockstep/error.h"
#include "lockstep/grad_scaler.h"
#include "lockstep/optimizer.h"

using namespace lockstep;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Parameters with the given gradients; an undefined one stays without.
std::vector<NamedParameter> with_gradients(const std::vector<torch::Tensor>& gradients) {
  std::vector<NamedParameter> parameters;
  for (const torch::Tensor& gradient : gradients) {
    auto parameter = gradient.defined() ? torch::zeros_like(gradient) : torch::zeros({2});
    parameter.requires_grad_();
    parameter.mutable_grad() = gradient.defined() ? gradient.clone() : gradient;
    parameters.push_back({concat("p", parameters.size()), parameter});
  }
  return parameters;
}

std::vector<torch::Tensor> gradients() {
  torch::manual_seed(3);
  return {torch::randn({3, 4}), {}, torch::randn({5}), torch::randn({2, 2, 2})};
}

void expect_same_gradients(const std::vector<NamedParameter>& left,
                           const std::vector<NamedParameter>& right) {
  for (std::size_t i = 0; i < left.size(); ++i) {
    ASSERT_EQ(left[i].tensor.grad().defined(), right[i].tensor.grad().defined());
    if (left[i].tensor.grad().defined()) {
      EXPECT_TRUE(torch::equal(left[i].tensor.grad(), right[i].tensor.grad()));
    }
  }
}

}  // namespace

TEST(ClipGradNorm, the_common_norm_becomes_the_limit) {
  const auto parameters = with_gradients(gradients());
  const auto before = clip_grad_norm(parameters, {.max_norm = 0.5}).item<float>();
  EXPECT_GT(before, 0.5f);
  EXPECT_NEAR(grad_norm(parameters).item<float>(), 0.5f, 1e-5);
}

TEST(ClipGradNorm, gradients_below_the_limit_keep_their_bits) {
  const auto parameters = with_gradients(gradients());
  clip_grad_norm(parameters, {.max_norm = 1e6});
  expect_same_gradients(parameters, with_gradients(gradients()));
}

TEST(ClipGradNorm, a_scale_by_a_power_of_two_is_as_scaling_first) {
  for (const double max_norm : {0.125, 1e6}) {
    const auto fused = with_gradients(gradients());
    const auto apart = with_gradients(gradients());
    const auto norm = clip_grad_norm(fused, {.max_norm = max_norm, .scale = 0.25});
    scale_gradients(apart, 0.25);
    EXPECT_TRUE(torch::equal(norm, clip_grad_norm(apart, {.max_norm = max_norm})));
    expect_same_gradients(fused, apart);
  }
}

TEST(ClipGradNorm, scales_may_lie_on_the_device_and_keep_their_precision) {
  const double scale = 1.0 / 3;
  auto narrow = gradients();
  for (auto& gradient : narrow) {
    gradient = gradient.defined() ? gradient.to(torch::kBFloat16) : gradient;
  }
  const auto parameters = with_gradients(narrow);
  clip_grad_norm(parameters, {.max_norm = 1e6, .scale_tensor = torch::full({1}, scale)});
  EXPECT_TRUE(torch::equal(parameters[0].tensor.grad(), narrow[0] * static_cast<float>(scale)));
  EXPECT_THROW(clip_grad_norm(parameters, {.scale_tensor = torch::ones({2})}), InvalidArgument);
}

TEST(ClipGradNorm, names_the_parameter_that_is_not_finite) {
  auto broken = gradients();
  broken[2][1] = std::nanf("");
  const auto parameters = with_gradients(broken);
  try {
    clip_grad_norm(parameters, {.error_if_nonfinite = true});
    FAIL() << "should have thrown";
  } catch (const NonFiniteGradient& error) {
    EXPECT_EQ(error.parameter(), "p2");
  }
  EXPECT_TRUE(torch::equal(parameters[0].tensor.grad(), broken[0]));
}

TEST(ClipGradValue, limits_every_element) {
  const auto parameters = with_gradients(gradients());
  clip_grad_value(parameters, 0.25);
  EXPECT_TRUE(torch::equal(parameters[0].tensor.grad(), gradients()[0].clamp(-0.25, 0.25)));
  EXPECT_THROW(clip_grad_value(parameters, -1), InvalidArgument);
}

TEST(NonFinite, finite_gradients_whose_norm_overflows_are_finite) {
  const auto parameters = with_gradients({torch::full({4}, 3e38f), torch::zeros({0})});
  EXPECT_TRUE(std::isinf(grad_norm({parameters[0]}).item<float>()));
  EXPECT_EQ(found_non_finite(parameters).item<float>(), 0);
  EXPECT_FALSE(non_finite_gradient(parameters));
  parameters[0].tensor.mutable_grad()[3] = -kInfinity;
  EXPECT_EQ(found_non_finite(parameters).item<float>(), 1);
  EXPECT_EQ(non_finite_gradient(parameters), "p0");
}

TEST(GradScaler, an_overflow_skips_the_step_and_lowers_the_scale) {
  auto weight = torch::ones({2}).requires_grad_();
  SGD optimizer({NamedParameter{"w", weight}}, {.lr = 1});
  GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  const auto iterate = [&](float factor) {
    optimizer.zero_grad();
    scaler.scale((weight * factor).sum()).backward();
    scaler.step(optimizer);
    scaler.update();
  };
  iterate(kInfinity);
  EXPECT_EQ(scaler.get_scale(), 4);
  EXPECT_TRUE(torch::equal(weight.detach(), torch::ones({2})));
  iterate(0.5);
  EXPECT_TRUE(torch::equal(weight.detach(), torch::full({2}, 0.5)));
  EXPECT_EQ(scaler.get_scale(), 4);
  iterate(0.5);
  EXPECT_EQ(scaler.get_scale(), 8);
}

TEST(GradScaler, what_another_rank_found_counts) {
  auto weight = torch::ones({2}).requires_grad_();
  SGD optimizer({NamedParameter{"w", weight}}, {.lr = 1});
  GradScaler scaler({.init_scale = 8});
  for (const bool unscaled : {true, false}) {
    optimizer.zero_grad();
    scaler.scale(weight.sum()).backward();
    unscaled ? scaler.unscale(optimizer) : scaler.check(optimizer);
    EXPECT_EQ(scaler.found_inf().item<float>(), 0);
    scaler.found_inf().fill_(1);  // as an all-reduce would
    scaler.step(optimizer);
    scaler.update();
  }
  EXPECT_EQ(scaler.get_scale(), 2);
  EXPECT_TRUE(torch::equal(weight.detach(), torch::ones({2})));
}

TEST(GradScaler, goes_on_from_its_state) {
  auto weight = torch::ones({2}).requires_grad_();
  SGD optimizer({NamedParameter{"w", weight}}, {.lr = 0});
  const auto iterate = [&](GradScaler& scaler) {
    optimizer.zero_grad();
    scaler.scale(weight.sum()).backward();
    scaler.step(optimizer);
    scaler.update();
  };
  GradScaler first({.init_scale = 2, .growth_interval = 2});
  iterate(first);
  GradScaler second;
  second.load_state(first.state());
  iterate(second);
  EXPECT_EQ(second.get_scale(), 4);  // two steps without overflow, one in each
  EXPECT_THROW(second.load_state({}), InvalidArgument);
}

TEST(GradScaler, calls_out_of_order_are_refused) {
  auto weight = torch::ones({2}).requires_grad_();
  SGD optimizer({NamedParameter{"w", weight}}, {});
  GradScaler scaler;
  EXPECT_THROW(scaler.update(), InvalidArgument);
  EXPECT_THROW(scaler.step(optimizer), InvalidArgument);
  EXPECT_THROW(scaler.found_inf(), InvalidArgument);
  scaler.scale(weight.sum()).backward();
  scaler.unscale(optimizer);
  EXPECT_THROW(scaler.unscale(optimizer), InvalidArgument);
  scaler.step(optimizer);
  EXPECT_THROW(scaler.step(optimizer), InvalidArgument);
  EXPECT_THROW(GradScaler({.growth_factor = 1}), InvalidArgument);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}), InvalidArgument);
}

TEST(GradScaler, half_parameters_cannot_be_unscaled) {
  auto weight = torch::ones({2}, torch::kHalf).requires_grad_();
  SGD optimizer({NamedParameter{"w", weight}}, {});
  GradScaler scaler;
  scaler.scale(weight.sum()).backward();
  EXPECT_THROW(scaler.unscale(optimizer), InvalidArgument);
}

TEST(Autocast, guards_nest_and_leave_things_as_they_were) {
  const auto product = [] {
    return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type();
  };
  {
    const Autocast outer({.dtype = torch::kBFloat16});
    EXPECT_EQ(product(), torch::kBFloat16);
    {
      const Autocast inner({.enabled = false});
      EXPECT_EQ(product(), torch::kFloat);
    }
    {
      const Autocast inner({.dtype = torch::kHalf});
      EXPECT_EQ(product(), torch::kHalf);
    }
    EXPECT_EQ(product(), torch::kBFloat16);
  }
  EXPECT_EQ(product(), torch::kFloat);
  EXPECT_THROW(Autocast({.dtype = torch::kDouble}), InvalidArgument);
}

TEST(Autocast, cast_weights_are_forgotten_at_the_end) {
  auto weight = torch::ones({2, 2}).requires_grad_();
  const auto output = [&] {
    const Autocast autocast({});
    const auto first = torch::mm(torch::ones({2, 2}), weight);
    return first[0][0].item<float>();
  };
  EXPECT_EQ(output(), 2);
  {
    torch::NoGradGuard no_grad;
    weight.fill_(3);  // what an optimizer does between two forwards
  }
  EXPECT_EQ(output(), 6);
}

TEST(Ema, follows_the_weights_and_copies_buffers) {
  torch::nn::BatchNorm1d norm(torch::nn::BatchNorm1dOptions(2));
  Ema ema(*norm, {.decay = 0.75});
  torch::NoGradGuard no_grad;
  norm->weight.fill_(4);
  ema.update();  // the first one copies
  norm->weight.fill_(8);
  norm->running_mean.fill_(3);
  norm->num_batches_tracked.fill_(7);
  ema.update();
  const State state = ema.state();
  EXPECT_EQ(state.tensors.at("weight")[0].item<float>(), 5);
  EXPECT_EQ(state.tensors.at("running_mean")[1].item<float>(), 3);
  EXPECT_EQ(state.tensors.at("num_batches_tracked").item<std::int64_t>(), 7);
  EXPECT_EQ(ema.updates(), 2);
}

TEST(Ema, warm_up_begins_with_a_short_memory) {
  auto weight = torch::zeros({1});
  Ema ema({NamedParameter{"w", weight}}, {}, {.decay = 0.99, .warmup = true});
  ema.update();
  weight.fill_(11);
  ema.update();  // decay (1 + 1) / (10 + 1)
  EXPECT_NEAR(ema.state().tensors.at("w").item<float>(), 9, 1e-5);
}

TEST(Ema, swapping_ends_also_when_an_exception_passes) {
  auto weight = torch::ones({2}).requires_grad_();
  Ema ema({NamedParameter{"w", weight}}, {}, {.decay = 0.5});
  ema.update();
  {
    torch::NoGradGuard no_grad;
    weight.fill_(2);
  }
  ema.update();
  const void* memory = weight.data_ptr();
  try {
    const Ema::Swapped swapped(ema);
    EXPECT_EQ(weight[0].item<float>(), 1.5);
    EXPECT_EQ(weight.data_ptr(), memory);
    EXPECT_THROW(ema.update(), InvalidArgument);
    EXPECT_THROW(Ema::Swapped{ema}, InvalidArgument);
    throw std::runtime_error("evaluation failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(weight[0].item<float>(), 2);
  EXPECT_EQ(ema.state().tensors.at("w")[0].item<float>(), 1.5);
}

TEST(Ema, goes_on_from_its_state) {
  auto weight = torch::ones({2});
  Ema first({NamedParameter{"w", weight}}, {}, {.decay = 0.5});
  first.update();
  Ema second({NamedParameter{"w", weight}}, {}, {.decay = 0.5});
  second.load_state(first.state());
  weight.fill_(3);
  first.update();
  second.update();
  EXPECT_TRUE(torch::equal(first.state().tensors.at("w"), second.state().tensors.at("w")));
  EXPECT_THROW(second.load_state({}), InvalidArgument);
  EXPECT_THROW(Ema({}, {}, {.decay = 1.5}), InvalidArgument);
}
