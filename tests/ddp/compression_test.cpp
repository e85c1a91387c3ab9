#include "lockstep/compression.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddp/orthogonalize.h"
#include "lockstep/ddp.h"
#include "lockstep/state.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

/// Inputs of a step that differ from rank to rank.
at::Tensor input_of(int step, int rank, std::int64_t width) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 * step + rank);
  return torch::randn({4, width}, generator);
}

void load_copy(GradientCompression& to, const State& from) {
  State copy{.tensors = {}, .values = from.values};
  for (const auto& [name, tensor] : from.tensors) copy.tensors[name] = tensor.clone();
  to.load_state(copy);
}

struct Training {
  Training(World& world, const CompressionOptions& options,
           const DistributedDataParallelOptions& ddp_options)
      : world(world) {
    torch::manual_seed(1);
    model = std::make_shared<Wide>();
    compression = std::make_shared<GradientCompression>(*model, options);
    compression->set_place({.slot = world.rank(), .slots = world.world_size()});
    distribute(ddp_options);
  }
  void distribute(const DistributedDataParallelOptions& options) {
    ddp.emplace(world, model, options);
    ddp->register_comm_hook(compression);
  }
  void step(int number) {
    ddp->zero_grad();
    ddp->forward(input_of(number, world.rank(), 200)).square().sum().backward();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.sub_(parameter.grad(), 1e-4);
  }
  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> copies;
    for (const auto& parameter : model->parameters()) copies.push_back(parameter.detach().clone());
    return copies;
  }

  World& world;
  std::shared_ptr<Wide> model;
  std::shared_ptr<GradientCompression> compression;
  std::optional<DistributedDataParallel<Wide>> ddp;
};

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(equal_bits(a[i], b[i])) << i;
}

const std::vector<CompressionOptions>& all_compressions() {
  static const std::vector<CompressionOptions> all{
      Int8Options{}, PowerSGDOptions{.matrix_approximation_rank = 2, .start_powerSGD_iter = 1}};
  return all;
}

}  // namespace

RANKS_TEST(Compression, ranks_agree_and_buckets_do_not_matter, 3) {
  World world = init();
  for (const CompressionOptions& options : all_compressions()) {
    Training one(world, options, {});
    Training many(world, options, {.bucket_cap_mb = 0.1, .gradient_as_bucket_view = true});
    Training unused(world, options, {.find_unused_parameters = true});
    for (int number = 0; number < 5; ++number) {
      one.step(number);
      many.step(number);
      unused.step(number);
    }
    expect_equal(many.weights(), one.weights());
    expect_equal(unused.weights(), one.weights());
    for (const auto& weight : one.weights()) EXPECT_TRUE(equal_on_all_ranks(world, weight));
    const auto statistics = one.compression->statistics();
    EXPECT_LT(statistics.after, 0.5 * statistics.before);
  }
}

RANKS_TEST(Compression, of_native_reductions_is_that_of_ordered_ones_for_two_ranks, 2) {
  World world = init();
  for (const CompressionOptions& options : all_compressions()) {
    Training ordered(world, options, {.reduction = Reduction::ordered});
    Training native(world, options, {.reduction = Reduction::native});
    for (int number = 0; number < 3; ++number) {
      ordered.step(number);
      native.step(number);
    }
    expect_equal(native.weights(), ordered.weights());
  }
}

RANKS_TEST(Compression, goes_on_from_its_state_with_the_same_bits, 2) {
  World world = init();
  for (const CompressionOptions& options : all_compressions()) {
    Training whole(world, options, {.bucket_cap_mb = 0.1});
    Training first(world, options, {.bucket_cap_mb = 0.1});
    for (int number = 0; number < 3; ++number) {
      whole.step(number);
      first.step(number);
    }
    const State state = first.compression->gather(world.group());
    const std::vector<at::Tensor> weights = first.weights();
    Training second(world, options, {});
    {
      const torch::NoGradGuard no_grad;
      const auto parameters = second.model->parameters();
      for (std::size_t i = 0; i < weights.size(); ++i) parameters[i].copy_(weights[i]);
    }
    load_copy(*second.compression, state);
    for (int number = 3; number < 6; ++number) {
      whole.step(number);
      second.step(number);
    }
    expect_equal(second.weights(), whole.weights());
  }
}

RANKS_TEST(Compression, a_step_that_is_aborted_leaves_no_trace, 2) {
  World world = init();
  for (const CompressionOptions& options : all_compressions()) {
    Training plain(world, options, {});
    Training careful(world, options, {});
    careful.compression->use_transactions();
    for (int number = 0; number < 4; ++number) {
      plain.step(number);
      const auto before = careful.weights();
      careful.step(77);
      careful.compression->abort();
      const torch::NoGradGuard no_grad;
      const auto parameters = careful.model->parameters();
      for (std::size_t i = 0; i < before.size(); ++i) parameters[i].copy_(before[i]);
      const at::AutoGradMode gradients(true);
      careful.step(number);
      careful.compression->commit();
    }
    expect_equal(careful.weights(), plain.weights());
  }
}

RANKS_TEST(Compression, a_mirror_has_every_slots_error_memory, 2) {
  World world = init();
  Training plain(world, Int8Options{}, {});
  Training mirrored(world, Int8Options{}, {});
  mirrored.compression->set_place(
      {.slot = world.rank(), .slots = world.world_size(), .mirrored = true});
  for (int number = 0; number < 3; ++number) {
    plain.step(number);
    mirrored.step(number);
    mirrored.compression->mirror(world.group());
    mirrored.compression->commit();
  }
  const State expected = plain.compression->gather(world.group());
  const State found = mirrored.compression->state();
  for (const std::string name : {"error.0", "error.1"}) {
    EXPECT_TRUE(equal_bits(found.tensors.at(name), expected.tensors.at(name))) << name;
    EXPECT_TRUE(equal_on_all_ranks(world, found.tensors.at(name))) << name;
  }
  EXPECT_FALSE(equal_bits(found.tensors.at("error.0"), found.tensors.at("error.1")));
}

// What is not sent in one step is sent in later ones: the sums over steps come close to each other,
// though each single step is off by as much as rounding takes away.
RANKS_TEST(Compression, error_feedback_makes_up_for_what_was_rounded, 2) {
  World world = init();
  const auto sums = [&](bool feedback) {
    torch::nn::Linear model(torch::nn::LinearOptions(600, 1).bias(false));
    auto compression =
        std::make_shared<GradientCompression>(*model, Int8Options{.error_feedback = feedback});
    compression->set_place({.slot = world.rank(), .slots = world.world_size()});
    DistributedDataParallel ddp(world, model);
    ddp.register_comm_hook(compression);
    at::Tensor gradient = torch::full({1, 600}, 0.003);
    gradient[0][0] = 1.0;  // the others are less than half a step of its scale
    at::Tensor sum = torch::zeros({1, 600});
    for (int number = 0; number < 50; ++number) {
      ddp.zero_grad();
      ddp(gradient).sum().backward();
      sum += model->weight.grad();
    }
    return sum;
  };
  EXPECT_EQ(sums(false)[0][7].item<float>(), 0);
  EXPECT_NEAR(sums(true)[0][7].item<float>(), 50 * 0.003, 0.01);
}

RANKS_TEST(Compression, what_is_not_finite_stays_so_on_every_rank, 2) {
  World world = init();
  for (const CompressionOptions& options : all_compressions()) {
    Training training(world, options, {});
    training.step(0);
    training.ddp->zero_grad();
    const double value = world.rank() == 0 ? NAN : 1.0;
    training.ddp->forward(torch::full({1, 200}, value)).sum().backward();
    const auto& gradient = training.model->parameters().front().grad();
    EXPECT_FALSE(torch::isfinite(gradient).all().item<bool>());
  }
}

RANKS_TEST(Compression, says_what_it_cannot_be_used_with, 2) {
  World world = init();
  Training training(world, Int8Options{}, {});
  EXPECT_THROW(training.ddp->join([] {}), InvalidArgument);
  EXPECT_THROW(training.ddp->register_comm_hook(CommHook::bf16_compress), InvalidArgument);
  EXPECT_THROW(GradientCompression(*training.model, CommHook::bf16_compress), InvalidArgument);
  EXPECT_THROW(
      GradientCompression(*training.model, PowerSGDOptions{.matrix_approximation_rank = 0}),
      InvalidArgument);
  State other = training.compression->state();
  other.values["options"] = "powersgd";
  EXPECT_THROW(training.compression->load_state(other), InvalidArgument);
  torch::nn::Linear small(2, 2);
  GradientCompression of_small(*small, Int8Options{});
  EXPECT_THROW(of_small.load_state(training.compression->gather(world.group())), InvalidArgument);
}

TEST(CompressionOptions, are_read_from_a_word) {
  EXPECT_TRUE(std::holds_alternative<std::monostate>(parse_compression("none")));
  EXPECT_EQ(std::get<CommHook>(parse_compression("bf16")), CommHook::bf16_compress);
  EXPECT_EQ(std::get<CommHook>(parse_compression("fp16")), CommHook::fp16_compress);
  EXPECT_TRUE(std::get<Int8Options>(parse_compression("int8")).error_feedback);
  const auto power_sgd = std::get<PowerSGDOptions>(parse_compression("powersgd:4:10"));
  EXPECT_EQ(power_sgd.matrix_approximation_rank, 4);
  EXPECT_EQ(power_sgd.start_powerSGD_iter, 10);
  EXPECT_EQ(std::get<PowerSGDOptions>(parse_compression("powersgd")).start_powerSGD_iter, 1000);
  for (const char* wrong : {"", "int4", "powersgd:", "powersgd:0", "powersgd:x", "powersgd:1:-1"}) {
    EXPECT_THROW(parse_compression(wrong), InvalidArgument) << wrong;
  }
}

TEST(Orthogonalize, makes_columns_orthonormal_and_keeps_columns_of_zeros) {
  torch::manual_seed(0);
  for (const int columns : {1, 2, 5}) {
    const at::Tensor matrix = torch::randn({1, 9, columns});
    orthogonalize(matrix, 0);
    const at::Tensor product = torch::bmm(matrix.transpose(1, 2), matrix)[0];
    EXPECT_TRUE(torch::allclose(product, torch::eye(columns), 1e-5, 1e-5)) << columns;
  }
  const at::Tensor zeros = torch::zeros({1, 4, 2});
  orthogonalize(zeros, 0);
  EXPECT_TRUE(torch::equal(zeros, torch::zeros({1, 4, 2})));
}
