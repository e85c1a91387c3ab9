#include "lockstep/ddp.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/distributed_sampler.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

RANKS_TEST(Ddp, backward_leaves_the_mean_of_all_ranks, 2) {
  World world = init();
  torch::manual_seed(world.rank());  // rank 1 starts with other weights
  torch::nn::Linear model(3, 2);
  DistributedDataParallel ddp(world, model);
  const at::Tensor input = torch::full({1, 3}, world.rank() + 1.0);
  ddp(input).sum().backward();
  EXPECT_TRUE(equal_bits(model->weight.grad(), torch::full({2, 3}, 1.5)));
  EXPECT_EQ(world.group().all_gather_string(concat(model->weight)).at(0), concat(model->weight));
}

RANKS_TEST(Ddp, parameters_keep_their_names, 2) {
  World world = init();
  auto model = std::make_shared<Mlp>();
  DistributedDataParallel ddp(world, model);
  EXPECT_EQ(
      ddp.engine().parameter_names(),
      (std::vector<std::string>{"first.weight", "first.bias", "second.weight", "second.bias"}));
}

RANKS_TEST(Ddp, tied_weights_count_once, 2) {
  World world = init();
  auto model = std::make_shared<Tied>();
  DistributedDataParallel ddp(world, model);
  EXPECT_EQ(ddp.engine().parameter_names(),
            (std::vector<std::string>{"encoder.weight", "encoder.bias", "decoder.bias"}));
  ddp(torch::ones({2, 6})).sum().backward();
  EXPECT_TRUE(equal_on_all_ranks(world, model->encoder->weight.grad()));
}

RANKS_TEST(Ddp, no_sync_adds_up_locally_and_the_next_step_reduces_the_sum, 2) {
  World world = init();
  torch::nn::Linear model(1, 1);
  DistributedDataParallel ddp(world, model);
  const auto backward = [&](double value) { ddp(torch::full({1, 1}, value)).sum().backward(); };
  for (int step = 0; step < 3; ++step) {
    ddp.zero_grad();
    {
      const auto guard = ddp.no_sync();
      backward(1 + world.rank());
      EXPECT_EQ(model->weight.grad().item<float>(), 1 + world.rank());
      backward(10);
    }
    backward(100);
    EXPECT_EQ(model->weight.grad().item<float>(), (111 + 112) / 2.0f);
  }
}

RANKS_TEST(Ddp, gradients_are_views_of_buckets, 2) {
  World world = init();
  auto model = std::make_shared<Mlp>();
  DistributedDataParallel ddp(world, model);
  std::vector<void*> places;
  for (int step = 0; step < 4; ++step) {
    ddp.zero_grad();
    ddp(torch::ones({2, 8})).sum().backward();
    const at::Tensor expected = model->second->bias.grad().clone();
    EXPECT_TRUE(equal_bits(expected, torch::full({4}, 2.0)));  // not added to the last step's
    if (step >= 1) {  // the buckets are rebuilt once, after the first step
      places.push_back(model->first->weight.grad().data_ptr());
    }
  }
  EXPECT_EQ(places[1], places[2]);
  ddp.zero_grad();
  EXPECT_FALSE(model->first->weight.grad().defined());
  const auto guard = ddp.no_sync();
  ddp(torch::ones({2, 8})).sum().backward();
  EXPECT_EQ(model->first->weight.grad().data_ptr(), places[2]) << "added up in the bucket";
  EXPECT_TRUE(equal_bits(model->second->bias.grad(), torch::full({4}, 2.0)));
}

RANKS_TEST(Ddp, gradients_of_another_layout_add_up_in_buckets, 2) {
  World world = init();
  torch::manual_seed(3);
  torch::nn::Conv2d model(torch::nn::Conv2dOptions(3, 4, 2));
  model->to(torch::kFloat);
  model->weight.set_data(model->weight.contiguous(at::MemoryFormat::ChannelsLast));
  DistributedDataParallel ddp(world, model);
  const auto image = torch::rand({1, 3, 5, 5}) * (world.rank() + 1);
  const auto weigh = torch::rand({1, 4, 4, 4});
  const auto backward = [&] { (ddp(image) * weigh).sum().backward(); };
  for (int step = 0; step < 3; ++step) {
    ddp.zero_grad();
    backward();
    const at::Tensor once = model->weight.grad().clone();
    ddp.zero_grad();
    {
      const auto guard = ddp.no_sync();
      backward();
    }
    backward();
    EXPECT_TRUE(equal_bits(model->weight.grad().contiguous(), (once + once).contiguous())) << step;
  }
}

RANKS_TEST(Ddp, unused_parameters_are_named_at_the_end_of_the_backward, 2) {
  World world = init();
  auto model = std::make_shared<Branches>();
  DistributedDataParallel ddp(world, model);
  const at::Tensor loss = ddp(torch::ones({1, 4}), /*left=*/true).sum();
  try {
    loss.backward();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UnusedParameters& error) {
    EXPECT_EQ(error.names(), (std::vector<std::string>{"right.weight", "right.bias"}))
        << error.what();
    EXPECT_NE(std::string(error.what()).find("2 of 4 parameters"), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("right.weight, right.bias"), std::string::npos);
  }
}

RANKS_TEST_WITH(Ddp, unused_parameters_of_a_sequential_are_named_under_debugging_too,
                {.count = 2, .environment = {{"TORCH_DISTRIBUTED_DEBUG", "INFO"}}}) {
  World world = init();
  auto model = std::make_shared<FirstOfTwo>();
  DistributedDataParallel ddp(world, model);
  try {
    ddp(torch::ones({1, 2})).sum().backward();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UnusedParameters& error) {
    EXPECT_EQ(error.names(), (std::vector<std::string>{"layers.1.weight", "layers.1.bias"}));
  }
}

RANKS_TEST(Ddp, options_that_differ_are_refused_instead_of_hanging, 2) {
  World world = init();
  torch::nn::Linear model(2, 2);
  try {
    DistributedDataParallel ddp(world, model, {.find_unused_parameters = world.rank() == 1});
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("find_unused_parameters 0 on rank 0"),
              std::string::npos)
        << error.what();
  }
}

RANKS_TEST(Ddp, a_world_may_be_left_before_the_model, 2) {
  World world = init();
  auto model = std::make_shared<Wide>();
  DistributedDataParallel ddp(world, model, {.bucket_cap_mb = 0.1});
  for (int step = 0; step < 2; ++step) ddp(torch::ones({2, 200})).sum().backward();
  world.barrier();
  world.destroy();
  EXPECT_THROW(ddp(torch::ones({2, 200})), Aborted);
}

RANKS_TEST(Ddp, find_unused_parameters_lets_branches_go_unused, 2) {
  World world = init();
  auto model = std::make_shared<Branches>();
  DistributedDataParallel ddp(world, model, {.find_unused_parameters = true});
  for (int step = 0; step < 4; ++step) {
    ddp.zero_grad();
    // Both go left, then they differ, then both go right.
    const bool left = step == 0 || (step < 3 && world.rank() == 0);
    ddp(torch::ones({1, 4}), left).sum().backward();
    const bool anyone_left = step<3, anyone_right = step> 0;
    EXPECT_EQ(model->left->weight.grad().defined(), anyone_left) << step;
    EXPECT_EQ(model->right->weight.grad().defined(), anyone_right) << step;
    if (step == 1) {
      EXPECT_TRUE(equal_bits(model->left->weight.grad(), torch::full({4, 4}, 0.5)));
    }
  }
}

RANKS_TEST(Ddp, what_is_unused_in_all_of_several_backwards_has_no_gradient, 2) {
  World world = init();
  auto model = std::make_shared<Branches>();
  DistributedDataParallel ddp(world, model, {.find_unused_parameters = true});
  for (int step = 0; step < 3; ++step) {
    ddp.zero_grad();
    {
      const auto guard = ddp.no_sync();
      ddp(torch::ones({1, 4}), /*left=*/true).sum().backward();
    }
    ddp(torch::ones({1, 4}), /*left=*/true).sum().backward();
    EXPECT_TRUE(equal_bits(model->left->weight.grad(), torch::full({4, 4}, 2.0))) << step;
    EXPECT_FALSE(model->right->weight.grad().defined()) << step;
  }
}

RANKS_TEST(Ddp, a_static_graph_allows_parameters_that_are_never_used, 2) {
  World world = init();
  auto model = std::make_shared<Branches>();
  DistributedDataParallel ddp(world, model, {.static_graph = true});
  for (int step = 0; step < 3; ++step) {
    ddp.zero_grad();
    ddp(torch::full({1, 4}, world.rank() + 1.0), /*left=*/true).sum().backward();
    EXPECT_TRUE(equal_bits(model->left->weight.grad(), torch::full({4, 4}, 1.5))) << step;
  }
}

RANKS_TEST(Ddp, a_loss_can_be_taken_from_the_outputs_one_after_the_other, 2) {
  World world = init();
  auto model = std::make_shared<TwoHeads>();
  DistributedDataParallel ddp(world, model);
  for (int step = 0; step < 2; ++step) {
    ddp.zero_grad();
    auto output = ddp(torch::full({1, 4}, world.rank() + 1.0));
    output.a.sum().backward();
    output.rest.at("b").sum().backward();
    EXPECT_TRUE(equal_bits(model->a->weight.grad(), torch::full({4, 4}, 1.5)));
    EXPECT_TRUE(equal_bits(model->b->weight.grad(), torch::full({4, 4}, 1.5)));
  }
}

RANKS_TEST(Ddp, buffers_follow_rank_0_and_two_forwards_may_precede_a_backward, 2) {
  World world = init();
  auto model = std::make_shared<Normed>();
  DistributedDataParallel ddp(world, model);
  torch::manual_seed(10 + world.rank());
  const auto first = ddp(torch::rand({8, 4}));
  const auto second = ddp(torch::rand({8, 4}));
  (first.sum() + second.sum()).backward();
  EXPECT_FALSE(equal_on_all_ranks(world, model->norm->running_mean));
  const at::Tensor of_rank_0 = broadcast_copy(world, model->norm->running_mean);
  model->eval();
  ddp(torch::rand({8, 4}));
  EXPECT_TRUE(equal_bits(model->norm->running_mean, of_rank_0));
}

RANKS_TEST(Ddp, ignored_parameters_stay_local, 2) {
  World world = init();
  torch::manual_seed(world.rank());
  auto model = std::make_shared<Mlp>();
  const at::Tensor before = model->first->bias.detach().clone();
  DistributedDataParallel ddp(world, model, {.ignored = {"first.bias"}});
  EXPECT_TRUE(equal_bits(model->first->bias, before));
  ddp(torch::full({1, 8}, world.rank() + 1.0)).sum().backward();
  EXPECT_TRUE(equal_on_all_ranks(world, model->first->weight.grad()));
  ASSERT_TRUE(model->first->bias.grad().defined());
  ddp.zero_grad();
  EXPECT_FALSE(model->first->bias.grad().defined());
  EXPECT_THROW((DistributedDataParallel(world, model, {.ignored = {"third.bias"}})),
               InvalidArgument);
}

RANKS_TEST(Ddp, sparse_gradients_are_reduced_row_by_row, 3) {
  World world = init();
  for (const auto reduction : {Reduction::ordered, Reduction::native}) {
    auto model = std::make_shared<Sparse>();
    DistributedDataParallel ddp(world, model, {.reduction = reduction});
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      ddp(torch::tensor({world.rank(), 3, 3}, torch::kLong)).sum().backward();
      at::Tensor expected = torch::zeros({5, 2});
      for (int row = 0; row < 3; ++row) expected[row] += 1.0 / 3;
      expected[3] += 2;
      EXPECT_TRUE(model->embedding->weight.grad().is_sparse());
      EXPECT_TRUE(torch::allclose(model->embedding->weight.grad().to_dense(), expected));
      EXPECT_TRUE(equal_on_all_ranks(world, model->embedding->weight.grad().to_dense()));
    }
  }
}

RANKS_TEST(Ddp, several_buckets_are_formed_after_the_first_step, 2) {
  World world = init();
  auto model = std::make_shared<Wide>();
  DistributedDataParallel ddp(world, model, {.bucket_cap_mb = 0.1});
  for (int step = 0; step < 3; ++step) ddp(torch::ones({2, 200})).sum().backward();
  const auto data = ddp.logging_data();
  EXPECT_EQ(data.at("world_size"), "2");
  EXPECT_EQ(data.at("iteration"), "2");
  const std::string sizes = data.at("rebuilt_bucket_sizes");
  EXPECT_GE(std::ranges::count(sizes, ','), 2) << sizes;
}

RANKS_TEST(Ddp, types_other_than_float_train_too, 2) {
  World world = init();
  for (const auto type : {at::kDouble, at::kBFloat16}) {
    for (const auto reduction : {Reduction::ordered, Reduction::native}) {
      torch::nn::Linear model(4, 4);
      model->to(type);
      DistributedDataParallel ddp(world, model, {.reduction = reduction});
      for (int step = 0; step < 2; ++step) {
        ddp.zero_grad();
        ddp(torch::full({1, 4}, world.rank() + 1.0, type)).sum().backward();
        EXPECT_TRUE(equal_bits(model->weight.grad(), torch::full({4, 4}, 1.5, type)));
      }
    }
  }
}

RANKS_TEST(Ddp, a_subgroup_trains_by_itself, 3) {
  World world = init();
  ProcessGroup pair = world.new_group({.ranks = {1, 2}});
  auto model = std::make_shared<Mlp>();
  if (pair.is_member()) {
    DistributedDataParallel ddp(pair, model);
    ddp(torch::full({1, 8}, world.rank() + 1.0)).sum().backward();
    EXPECT_TRUE(equal_bits(model->second->bias.grad(), torch::ones({4})));
  } else {
    EXPECT_THROW((DistributedDataParallel(pair, model)), InvalidArgument);
  }
  world.barrier();
}

RANKS_TEST(Ddp, a_model_without_trainable_parameters_is_refused, 2) {
  World world = init();
  try {
    DistributedDataParallel ddp(world, std::make_shared<torch::nn::ReLUImpl>());
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("no parameter that requires a gradient"),
              std::string::npos);
  }
}

RANKS_TEST(Ddp, models_that_differ_are_refused_on_every_rank_with_the_difference, 2) {
  World world = init();
  try {
    torch::nn::Linear model(4 + world.rank(), 2);
    DistributedDataParallel ddp(world, model);
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    EXPECT_NE(
        text.find(
            "parameter weight [2, 4] Float on rank 0 and parameter weight [2, 5] Float on rank 1"),
        std::string::npos)
        << text;
  }
  try {
    torch::nn::Sequential model;
    for (int i = 0; i <= world.rank(); ++i) model->push_back(torch::nn::Linear(2, 2));
    DistributedDataParallel ddp(world, model);
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("and parameter 1.weight [2, 2] Float on rank 1"), std::string::npos)
        << text;
  }
}

RANKS_TEST(Ddp, a_forward_on_the_wrong_device_is_refused_before_it_runs, 2) {
  World world = init();
  auto model = std::make_shared<Mlp>();
  DistributedDataParallel ddp(world, model);
  try {
    ddp(torch::ones({1, 8}, torch::kMeta));
    ADD_FAILURE() << "accepted";
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("is on meta but the model is on cpu"), std::string::npos) << text;
  }
  ddp(torch::ones({1, 8})).sum().backward();  // nothing was lost
}

RANKS_TEST(Ddp, bad_bucket_sizes_are_refused_with_their_value, 2) {
  World world = init();
  auto model = std::make_shared<Mlp>();
  EXPECT_THROW((DistributedDataParallel(world, model, {.bucket_cap_mb = -1})), InvalidArgument);
  EXPECT_THROW(
      (DistributedDataParallel(world, model, {.bucket_cap_mb = 1, .bucket_cap_mb_list = {1}})),
      InvalidArgument);
}
