#include "lockstep/module_state.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "tests/snapshot/support.h"

using namespace lockstep;
using lockstep::testing::has;

namespace {

struct Net : torch::nn::Module {
  Net() {
    register_module("embedding", torch::nn::Embedding(10, 4));
    register_module("norm", torch::nn::BatchNorm1d(4));
    register_module("head", torch::nn::Linear(torch::nn::LinearOptions(4, 10).bias(false)));
  }
};

// Two names for one tensor, as the two ends of GPT-2 have.
struct Tied : torch::nn::Module {
  Tied() {
    const torch::Tensor weight = register_parameter("wte", torch::rand({6, 2}));
    register_parameter("lm_head", weight);
  }
};

State clone(State state) {
  for (auto& [name, tensor] : state.tensors) tensor = tensor.clone();
  return state;
}

State renamed(const State& state, const std::string& prefix) {
  State result;
  for (const auto& [name, tensor] : state.tensors) result.tensors[prefix + name] = tensor;
  return result;
}

void expect_equal(const State& a, const State& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) {
    EXPECT_TRUE(torch::equal(tensor, b.tensors.at(name))) << name;
  }
}

std::string refusal(torch::nn::Module& module, const State& state) {
  try {
    load_module_state(module, state);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST(ModuleState, has_parameters_and_buffers_under_pythons_names) {
  Net net;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : module_state(net).tensors) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"embedding.weight", "head.weight", "norm.bias",
                                             "norm.num_batches_tracked", "norm.running_mean",
                                             "norm.running_var", "norm.weight"}));
}

TEST(ModuleState, loads_what_it_gave_into_another_module) {
  Net one, other;
  load_module_state(other, clone(module_state(one)));
  expect_equal(module_state(one), module_state(other));
  EXPECT_TRUE(other.parameters()[0].requires_grad());
}

TEST(ModuleState, prefixes_of_wrappers_are_stripped) {
  for (const std::string prefix :
       {"module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module."}) {
    Net one, other;
    load_module_state(other, renamed(module_state(one), prefix));
    expect_equal(module_state(one), module_state(other));
  }
}

TEST(ModuleState, a_part_that_was_compiled_alone_loses_its_prefix) {
  Net one, other;
  State state = module_state(one);
  state.tensors["norm._orig_mod.weight"] = state.tensors["norm.weight"];
  state.tensors.erase("norm.weight");
  load_module_state(other, state);
  expect_equal(module_state(one), module_state(other));
}

TEST(ModuleState, a_module_that_is_itself_called_module_keeps_its_name) {
  struct Outer : torch::nn::Module {
    Outer() { register_module("module", torch::nn::Linear(2, 2)); }
  } one, other;
  load_module_state(other, renamed(module_state(one), "module."));
  expect_equal(module_state(one), module_state(other));
}

TEST(ModuleState, one_name_of_a_tied_tensor_is_enough) {
  Tied one, other;
  EXPECT_EQ(module_state(one).tensors.size(), 2u);
  State state = clone(module_state(one));
  state.tensors.erase("lm_head");
  load_module_state(other, state);
  expect_equal(module_state(one), module_state(other));
}

TEST(ModuleState, everything_that_does_not_fit_is_told_in_one_line_and_nothing_changes) {
  Net net;
  State state = clone(module_state(net));
  const State before = clone(module_state(net));
  state.tensors.erase("norm.bias");
  state.tensors["norm.extra"] = torch::zeros({1});
  state.tensors["head.weight"] = torch::zeros({3, 3});
  state.tensors["norm.weight"] = torch::full({4}, 9.0);
  const std::string text = refusal(net, state);
  EXPECT_TRUE(has(text, "missing: norm.bias")) << text;
  EXPECT_TRUE(has(text, "unexpected: norm.extra")) << text;
  EXPECT_TRUE(has(text, "head.weight is [3, 3] instead of [10, 4]")) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
  expect_equal(module_state(net), before);
}

TEST(ModuleState, values_are_converted_to_the_modules_type) {
  Tied net;
  State state;
  state.tensors["wte"] = torch::full({6, 2}, 0.5, torch::kBFloat16);
  load_module_state(net, state);
  EXPECT_TRUE(torch::equal(net.parameters()[0], torch::full({6, 2}, 0.5)));
}
