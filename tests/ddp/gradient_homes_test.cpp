#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

// Gradients that are computed in DDP's buckets: nobody can tell, but that the reducer copies less.
namespace {

/// Counts the gradients that the reducer copies into its buckets.
class CopiedGradients {
 public:
  CopiedGradients() {
    count_ = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
          count_ += call.name() == std::string_view("torch::distributed::reducer::copy_");
          return nullptr;
        }));
  }
  ~CopiedGradients() { at::removeCallback(handle_); }
  int count() const { return count_; }

 private:
  static inline int count_ = 0;
  at::CallbackHandle handle_;
};

struct Layers : torch::nn::Module {
  struct Options {
    std::vector<std::int64_t> widths;
    bool bias = true;
    bool fused = false;  // at::linear instead of torch::nn::Linear's forward
  };

  explicit Layers(Options given) : options(std::move(given)) {
    register_module("all", all);
    for (std::size_t i = 0; i + 1 < options.widths.size(); ++i) {
      all->push_back(torch::nn::Linear(
          torch::nn::LinearOptions(options.widths[i], options.widths[i + 1]).bias(options.bias)));
    }
  }

  at::Tensor forward(at::Tensor x) {
    for (auto& each : *all) {
      auto& layer = *each->as<torch::nn::Linear>();
      x = torch::tanh(options.fused ? at::linear(x, layer.weight, layer.bias) : layer.forward(x));
    }
    return x;
  }
  at::Tensor& weight(std::size_t i) { return all[i]->as<torch::nn::Linear>()->weight; }
  at::Tensor& bias(std::size_t i) { return all[i]->as<torch::nn::Linear>()->bias; }

  Options options;
  torch::nn::ModuleList all;
};

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && torch::equal(a.contiguous().view(torch::kInt),  // NaN, -0.0
                                                b.contiguous().view(torch::kInt));
}

at::Tensor loss_of(const at::Tensor& output) {
  return output.square().sum();
}

std::vector<at::Tensor> trained(torch::nn::Module& model) {
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : model.parameters()) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  return parameters;
}

// What PyTorch computes without DDP, for the parameters and for x if that is asked for.
std::vector<at::Tensor> gradients_without_ddp(Layers& model, const at::Tensor& x) {
  std::vector<at::Tensor> of = trained(model);
  if (x.requires_grad()) of.push_back(x);
  return torch::autograd::grad({loss_of(model.forward(x))}, of);
}

// Three steps, so that the buckets are rebuilt in between. All ranks have the same input, so that
// the mean over two of them is what each has. Returns how many gradients were copied in one.
int copied_in_steps(World& world, const std::shared_ptr<Layers>& model, at::Tensor x,
                    const DistributedDataParallelOptions& options = {}) {
  DistributedDataParallel ddp(world, model, options);
  int copied = 0;
  for (int step = 0; step < 3; ++step) {
    const std::vector<at::Tensor> expected = gradients_without_ddp(*model, x);
    ddp.zero_grad();
    x.mutable_grad().reset();
    const CopiedGradients copies;
    loss_of(ddp(x)).backward();
    copied = copies.count();
    std::vector<at::Tensor> found;
    for (const auto& parameter : trained(*model)) found.push_back(parameter.grad());
    if (x.requires_grad()) found.push_back(x.grad());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(same_bits(found[i], expected[i])) << "step " << step << ", gradient " << i;
    }
  }
  return copied;
}

}  // namespace

RANKS_TEST(GradientHomes, weights_gradients_are_not_copied_and_have_pytorchs_bits, 2) {
  World world = init();
  torch::manual_seed(1);
  const std::vector<std::vector<std::int64_t>> inputs{{0, 5}, {1, 5}, {8, 5}, {37, 5}, {2, 3, 5}};
  for (const auto& widths : std::vector<std::vector<std::int64_t>>{
           {5, 1, 1}, {5, 7, 129, 3}, {5, 64, 64, 200}, {5, 300, 513}}) {
    for (const auto& input : inputs) {
      for (const bool bias : {true, false}) {
        for (const bool fused : {true, false}) {
          SCOPED_TRACE(concat(widths.size(), " widths to ", widths.back(), ", input of ",
                              input.size(), " dimensions and ", input[0], " rows, bias ", bias,
                              ", fused ", fused));
          auto model = std::make_shared<Layers>(Layers::Options{widths, bias, fused});
          const int layers = static_cast<int>(widths.size()) - 1;
          EXPECT_EQ(copied_in_steps(world, model, torch::randn(input)), bias ? layers : 0);
        }
      }
    }
  }
}

RANKS_TEST(GradientHomes, what_is_frozen_changes_nothing_for_the_rest, 2) {
  World world = init();
  torch::manual_seed(1);
  for (int frozen = 0; frozen < 6; ++frozen) {
    SCOPED_TRACE(frozen);
    auto model = std::make_shared<Layers>(Layers::Options{.widths = {6, 6, 6, 6}});
    at::Tensor& parameter = frozen < 3 ? model->weight(frozen) : model->bias(frozen - 3);
    parameter.set_requires_grad(false);
    const at::Tensor x = torch::randn({6, 6}).requires_grad_();
    EXPECT_EQ(copied_in_steps(world, model, x), frozen < 3 ? 3 : 2);
  }
}

RANKS_TEST(GradientHomes, options_of_ddp_keep_the_bits, 2) {
  World world = init();
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({8, 40});
  const auto copied = [&](const DistributedDataParallelOptions& options) {
    auto model = std::make_shared<Layers>(Layers::Options{{40, 400, 300}, /*bias=*/false});
    return copied_in_steps(world, model, x, options);
  };
  EXPECT_EQ(copied({.bucket_cap_mb = 0.01}), 0);
  EXPECT_EQ(copied({.find_unused_parameters = true}), 0);
  EXPECT_EQ(copied({.static_graph = true}), 0);
  EXPECT_EQ(copied({.gradient_as_bucket_view = false}), 2);
  EXPECT_EQ(copied({.reduction = Reduction::native}), 0) << "it multiplies instead";
}

RANKS_TEST(GradientHomes, the_native_reduction_divides_as_it_does_without_views, 3) {
  World world = init();
  std::vector<at::Tensor> found;
  for (const bool view : {true, false}) {
    torch::manual_seed(1);
    auto model = std::make_shared<Layers>(Layers::Options{.widths = {40, 30, 20}});
    DistributedDataParallel ddp(world, model,
                                {.gradient_as_bucket_view = view, .reduction = Reduction::native});
    torch::manual_seed(world.rank());
    const at::Tensor x = torch::randn({8, 40});
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      loss_of(ddp(x)).backward();
    }
    found.push_back(model->weight(0).grad().clone());
  }
  EXPECT_TRUE(same_bits(found[0], found[1]));
}

RANKS_TEST(GradientHomes, a_weight_that_is_used_twice_gets_the_sum, 2) {
  World world = init();
  torch::manual_seed(1);
  struct Twice : Layers {
    using Layers::Layers;
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor transposed = weight(0).t();  // used twice itself
      return Layers::forward(Layers::forward(x)) + x.mm(transposed) - x.square().mm(transposed);
    }
  };
  auto model = std::make_shared<Twice>(Layers::Options{.widths = {20, 20}});
  DistributedDataParallel ddp(world, model);
  const at::Tensor x = torch::randn({4, 20});
  for (int step = 0; step < 3; ++step) {
    const auto expected = torch::autograd::grad({loss_of(model->forward(x))}, {model->weight(0)});
    ddp.zero_grad();
    loss_of(ddp(x)).backward();
    EXPECT_TRUE(same_bits(model->weight(0).grad(), expected[0])) << step;
  }
}

RANKS_TEST(GradientHomes, a_hook_may_keep_the_gradient_that_this_rank_has, 2) {
  World world = init();
  torch::manual_seed(1);
  auto model = std::make_shared<Layers>(Layers::Options{{20, 20, 20}, /*bias=*/false});
  at::Tensor kept;
  model->weight(0).register_hook([&](const at::Tensor& gradient) { kept = gradient; });
  DistributedDataParallel ddp(world, model);
  torch::manual_seed(world.rank());
  const at::Tensor x = torch::randn({4, 20});
  for (int step = 0; step < 3; ++step) {
    const auto mine = gradients_without_ddp(*model, x);
    ddp.zero_grad();
    kept.reset();
    const CopiedGradients copies;
    loss_of(ddp(x)).backward();
    EXPECT_EQ(copies.count(), 1);
    EXPECT_TRUE(same_bits(kept, mine[0])) << step;
    EXPECT_FALSE(same_bits(model->weight(0).grad(), mine[0])) << step;
    EXPECT_TRUE(equal_on_all_ranks(world, model->weight(0).grad())) << step;
  }
}

RANKS_TEST(GradientHomes, a_graph_that_is_kept_adds_to_what_is_there, 2) {
  World world = init();
  torch::manual_seed(1);
  auto model = std::make_shared<Layers>(Layers::Options{.widths = {20, 20, 20}});
  DistributedDataParallel ddp(world, model);
  const at::Tensor x = torch::randn({4, 20});
  for (int step = 0; step < 3; ++step) {
    const auto once = gradients_without_ddp(*model, x);
    ddp.zero_grad();
    const at::Tensor loss = loss_of(ddp(x));
    loss.backward({}, /*retain_graph=*/true);
    const at::Tensor first = model->weight(1).grad();
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_TRUE(same_bits(model->weight(1).grad(), once[2] + once[2])) << step;
    // A gradient that the user has taken away stays what it is.
    ddp.zero_grad();
    loss.backward();
    EXPECT_TRUE(same_bits(first, once[2] + once[2])) << step;
    EXPECT_TRUE(same_bits(model->weight(1).grad(), once[2])) << step;
  }
}

RANKS_TEST(GradientHomes, gradients_that_are_asked_for_belong_to_the_caller, 2) {
  World world = init();
  torch::manual_seed(1);
  auto model = std::make_shared<Layers>(Layers::Options{.widths = {20, 20, 20}});
  DistributedDataParallel ddp(world, model);
  torch::manual_seed(world.rank());
  const at::Tensor x = torch::randn({4, 20});
  for (int step = 0; step < 3; ++step) {
    const auto mine = gradients_without_ddp(*model, x);
    ddp.zero_grad();
    const at::Tensor loss = loss_of(ddp(x));
    const auto asked = torch::autograd::grad({loss}, trained(*model), {}, /*retain_graph=*/true);
    loss.backward();
    for (std::size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(same_bits(asked[i], mine[i])) << i;
    EXPECT_TRUE(equal_on_all_ranks(world, model->weight(0).grad()));
  }
}

RANKS_TEST(GradientHomes, gradients_of_gradients_are_pytorchs, 2) {
  World world = init();
  torch::manual_seed(1);
  auto model = std::make_shared<Layers>(Layers::Options{.widths = {20, 20, 20}});
  DistributedDataParallel ddp(world, model);
  const at::Tensor x = torch::randn({4, 20}).requires_grad_();
  const auto penalty = [&](const at::Tensor& output) {
    const at::Tensor slope = torch::autograd::grad({loss_of(output)}, {x}, {}, /*retain_graph=*/{},
                                                   /*create_graph=*/true)[0];
    return slope.square().sum() + loss_of(output);
  };
  for (int step = 0; step < 3; ++step) {
    const auto expected =
        torch::autograd::grad({penalty(model->forward(x))}, {model->weight(0), model->weight(1)});
    ddp.zero_grad();
    penalty(ddp(x)).backward();
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(same_bits(model->weight(i).grad(), expected[i])) << "step " << step << ", " << i;
    }
  }
}

RANKS_TEST(GradientHomes, several_backwards_are_added_up_as_before, 2) {
  World world = init();
  torch::manual_seed(1);
  for (const bool find_unused : {false, true}) {
    auto model = std::make_shared<Layers>(Layers::Options{.widths = {20, 20, 20}});
    DistributedDataParallel ddp(world, model, {.find_unused_parameters = find_unused});
    const at::Tensor x = torch::randn({4, 20}), y = torch::randn({4, 20});
    for (int step = 0; step < 3; ++step) {
      const at::Tensor expected =
          gradients_without_ddp(*model, x)[0] + gradients_without_ddp(*model, y)[0];
      ddp.zero_grad();
      ddp(y);  // whose backward never comes: its homes must not stay open
      {
        const auto guard = ddp.no_sync();
        loss_of(ddp(x)).backward();
      }
      loss_of(ddp(y)).backward();
      EXPECT_TRUE(same_bits(model->weight(0).grad(), expected)) << step;
    }
  }
}

RANKS_TEST(GradientHomes, a_new_ddp_takes_over_after_a_backward_that_threw, 2) {
  World world = init();
  torch::manual_seed(1);
  auto model = std::make_shared<Layers>(Layers::Options{.widths = {20, 20, 20}});
  const at::Tensor x = torch::randn({4, 20});
  at::Tensor left;  // a graph that outlives the DDP
  {
    DistributedDataParallel ddp(world, model);
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      loss_of(ddp(x)).backward();
    }
    ddp.zero_grad();
    const unsigned trap = model->weight(0).register_hook(
        [](const at::Tensor&) -> at::Tensor { throw Error("a trap"); });
    left = loss_of(ddp(x));
    EXPECT_THROW(left.backward({}, /*retain_graph=*/true), Error);
    model->weight(0).remove_hook(trap);
  }
  model->zero_grad();
  left.backward();
  EXPECT_TRUE(same_bits(model->weight(0).grad(), gradients_without_ddp(*model, x)[0]));
  model->zero_grad();
  copied_in_steps(world, model, x);
}

RANKS_TEST(GradientHomes, a_weight_that_is_given_another_layout_gets_its_gradient, 2) {
  World world = init();
  torch::manual_seed(1);
  auto model = std::make_shared<Layers>(Layers::Options{.widths = {20, 20, 20}});
  DistributedDataParallel ddp(world, model);
  const at::Tensor x = torch::randn({4, 20});
  for (int step = 0; step < 4; ++step) {
    if (step == 2) model->weight(0).set_data(model->weight(0).detach().t().contiguous().t());
    const auto expected = gradients_without_ddp(*model, x);
    ddp.zero_grad();
    loss_of(ddp(x)).backward();
    EXPECT_TRUE(same_bits(model->weight(0).grad(), expected[0])) << step;
  }
}
