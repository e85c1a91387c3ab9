#include "lockstep/recoverable.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/ema.h"
#include "lockstep/error.h"
#include "lockstep/optimizer.h"
#include "lockstep/random_scope.h"
#include "lockstep/world.h"
#include "tests/support/ranks.h"
#include "train/carry_over.h"

using namespace lockstep;

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("linear", linear);
    register_module("norm", norm);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::dropout(norm(linear(x)), 0.5, is_training());
  }
  torch::nn::Linear linear{3, 4};
  torch::nn::BatchNorm1d norm{4};
};
TORCH_MODULE(Net);

Net new_net() {
  torch::manual_seed(3);
  return {};
}

World alone() {
  return init({.store = Store::tcp({.serve = true}), .rank = 0, .world_size = 1});
}

torch::Tensor input_of(std::int64_t step, int rank) {
  torch::manual_seed(static_cast<std::uint64_t>(100 * step + rank));
  return torch::randn({6, 3});
}

bool same(Net& a, Net& b) {
  bool equal = true;
  for (const auto& item : a->named_parameters()) {
    equal = equal && torch::equal(item.value(), b->named_parameters()[item.key()]);
  }
  for (const auto& item : a->named_buffers()) {
    equal = equal && torch::equal(item.value(), b->named_buffers()[item.key()]);
  }
  return equal;
}

/// A loop over a net on one rank.
struct Fixture {
  World world = alone();
  Net net = new_net();
  AdamW optimizer{named_parameters(*net), {.lr = 0.1}};
  std::int64_t seen = 0;

  RecoverableState state(std::optional<std::int64_t> steps) {
    return {.module = net.ptr(),
            .optimizer = optimizer,
            .others = {{"seen", recoverable_value(seen)}},
            .steps = steps};
  }
  void compute(std::int64_t step) {
    optimizer.zero_grad();
    net->forward(input_of(step, 0)).square().sum().backward();
  }
  void apply() {
    optimizer.step();
    seen += 1;
  }
  /// Runs steps of this kind.
  std::int64_t run(const RecoverableState& state,
                   const std::function<void(RecoverableStep&)>& step) {
    return recoverable(world, state, [&](World&) { return step; });
  }
  std::string refusal(const RecoverableState& state,
                      const std::function<void(RecoverableStep&)>& step) {
    try {
      run(state, step);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was refused";
  }
};

}  // namespace

TEST(Recoverable, does_every_step_once_and_in_order) {
  Fixture fixture;
  std::vector<std::int64_t> numbers;
  RecoverableState state = fixture.state(6);
  state.first_step = 2;
  const std::int64_t next = fixture.run(state, [&](RecoverableStep& step) {
    numbers.push_back(step.number());
    fixture.compute(step.number());
    step.commit([&] { fixture.apply(); });
  });
  EXPECT_EQ(next, 6);
  EXPECT_EQ(numbers, (std::vector<std::int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(fixture.seen, 4);
}

TEST(Recoverable, ends_when_a_step_says_so) {
  Fixture fixture;
  const std::int64_t next = fixture.run(fixture.state(std::nullopt), [&](RecoverableStep& step) {
    if (step.number() == 3) step.stop();
    step.commit([&] { fixture.seen += 1; });
  });
  EXPECT_EQ(next, 4);
  EXPECT_EQ(fixture.seen, 4);
}

TEST(Recoverable, random_numbers_of_a_step_depend_on_its_place_alone) {
  Fixture fixture;
  std::vector<torch::Tensor> drawn;
  RecoverableState state = fixture.state(3);
  state.seed = 9;
  fixture.run(state, [&](RecoverableStep& step) {
    if (step.number() == 1) drawn.push_back(torch::rand({5}));
    step.commit([&] { fixture.seen += 1; });
  });
  const RandomScope place({.seed = 9, .step = 1, .slot = 0}, torch::kCPU);
  EXPECT_TRUE(torch::equal(drawn.at(0), torch::rand({5})));
}

TEST(Recoverable, a_step_that_throws_leaves_no_trace_and_ends_the_run) {
  Fixture fixture;
  Net untouched = new_net();
  try {
    fixture.run(fixture.state(3), [&](RecoverableStep& step) {
      fixture.compute(step.number());
      throw std::runtime_error("out of luck");
    });
    FAIL() << "it did not throw";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "out of luck");
  }
  EXPECT_TRUE(same(fixture.net, untouched));
  EXPECT_FALSE(fixture.net->linear->weight.grad().defined());
  EXPECT_EQ(fixture.seen, 0);
}

TEST(Recoverable, refuses_steps_that_are_not_committed_once) {
  Fixture fixture;
  EXPECT_EQ(fixture.refusal(fixture.state(2), [](RecoverableStep&) {}),
            "recoverable: step 0: it was not committed; a step calls commit() once");
  Fixture another;
  EXPECT_EQ(another.refusal(another.state(2),
                            [](RecoverableStep& step) {
                              step.commit([] {});
                              step.commit([] {});
                            }),
            "recoverable: step 0: commit() was called twice; a step calls it once");
  Fixture third;
  EXPECT_EQ(third.refusal(third.state(2),
                          [](RecoverableStep& step) {
                            step.commit([] {});
                            step.stop();
                          }),
            "recoverable: step 0: stop() was called after commit(); it comes before");
}

TEST(Recoverable, refuses_changes_before_the_commit_and_names_what_changed) {
  const auto start = [](const char* what) {
    return concat("recoverable: step 0: the ", what, " was changed before commit(); ");
  };
  Fixture stepping;
  EXPECT_TRUE(stepping
                  .refusal(stepping.state(2),
                           [&](RecoverableStep& step) {
                             stepping.compute(0);
                             stepping.optimizer.step();
                             step.commit([] {});
                           })
                  .starts_with(start("module")));
  Fixture counting;
  EXPECT_TRUE(counting
                  .refusal(counting.state(2),
                           [&](RecoverableStep& step) {
                             counting.seen += 1;
                             step.commit([] {});
                           })
                  .starts_with(start("other seen")));
}

TEST(Recoverable, lets_a_schedule_and_an_average_do_their_work_before_the_commit) {
  Fixture fixture;
  Ema ema(*fixture.net);
  RecoverableState state = fixture.state(3);
  state.others.emplace("average", ema);
  fixture.run(state, [&](RecoverableStep& step) {
    fixture.optimizer.set_lr(0, 0.1 / static_cast<double>(1 + step.number()));
    {
      const Ema::Swapped average(ema);
      fixture.net->forward(input_of(1, 0));
    }
    fixture.compute(step.number());
    step.commit([&] {
      fixture.apply();
      ema.update();
    });
  });
  EXPECT_EQ(ema.updates(), 3);
}

TEST(Recoverable, refuses_a_state_that_lacks_something) {
  Fixture fixture;
  const auto commit = [](RecoverableStep& step) { step.commit([] {}); };
  RecoverableState state = fixture.state(1);
  state.module = nullptr;
  EXPECT_EQ(fixture.refusal(state, commit), "recoverable: the module is null");
  state = fixture.state(1);
  state.optimizer = {};
  EXPECT_EQ(fixture.refusal(state, commit),
            "recoverable: optimizer has no function that captures or sets its state");
  state = fixture.state(1);
  state.others["counter"] = {};
  EXPECT_EQ(fixture.refusal(state, commit),
            "recoverable: 'counter' has no function that captures or sets its state");
  state = fixture.state(-1);
  EXPECT_EQ(fixture.refusal(state, commit), "recoverable: steps is -1");
}

TEST(Recoverable, parts_are_captured_and_set_and_copies_refer_to_the_same) {
  std::vector<double> values = {1, INFINITY};
  RecoverablePart part = recoverable_value(values);
  RecoverablePart copy = part;
  part = {};
  const State state = copy.state();
  values = {3};
  copy.load_state(state);
  EXPECT_EQ(values, (std::vector<double>{1, INFINITY}));
}

RANKS_TEST(Recoverable, gives_the_bits_of_a_plain_loop, 2) {
  World world = init();
  Net net = new_net(), plain = new_net();
  AdamW optimizer(named_parameters(*net), {.lr = 0.1});
  int formed = 0;
  recoverable(world, {.module = net.ptr(), .optimizer = optimizer, .steps = 5, .seed = 4},
              [&](World& world) {
                ++formed;
                return
                    [&, ddp = DistributedDataParallel(world, net)](RecoverableStep& step) mutable {
                      EXPECT_EQ(step.slots().count, 2);
                      EXPECT_EQ(step.slots().first, world.rank());
                      EXPECT_EQ(step.slots().last, world.rank() + 1);
                      const auto drawn = torch::rand({1}).item<float>();
                      const auto input = input_of(step.number(), world.rank());
                      ddp.zero_grad();
                      (ddp.forward(input).square().sum() * drawn).backward();
                      step.commit([&] { optimizer.step(); });
                    };
              });
  EXPECT_EQ(formed, 1);

  AdamW own(named_parameters(*plain), {.lr = 0.1});
  DistributedDataParallel ddp(world, plain);
  for (std::int64_t step = 0; step < 5; ++step) {
    const RandomScope place({.seed = 4, .step = step, .slot = world.rank()}, torch::kCPU);
    const auto drawn = torch::rand({1}).item<float>();
    const auto input = input_of(step, world.rank());
    ddp.zero_grad();
    (ddp.forward(input).square().sum() * drawn).backward();
    own.step();
  }
  for (const auto& item : net->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), plain->named_parameters()[item.key()])) << item.key();
  }
  // After a commit all ranks have rank 0's.
  const auto mean = net->norm->running_mean.clone();
  world.group().broadcast(mean);
  EXPECT_TRUE(torch::equal(mean, net->norm->running_mean));
}

RANKS_TEST(Recoverable, refuses_ranks_that_begin_differently, 2) {
  World world = init();
  Net net = new_net();
  AdamW optimizer(named_parameters(*net), {.lr = 0.1});
  std::int64_t seen = world.rank();
  const RecoverableState state{.module = net.ptr(),
                               .optimizer = optimizer,
                               .others = {{"seen", recoverable_value(seen)}},
                               .steps = 1};
  try {
    recoverable(world, state,
                [](World&) { return [](RecoverableStep& step) { step.commit([] {}); }; });
    FAIL() << "it did not throw";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "recoverable: at the start the other seen of rank 1 is not that of rank 0; all "
                 "ranks must have the same");
  }
}

RANKS_TEST(CarryOver, the_lowest_of_those_furthest_gives_to_all_behind, 4) {
  World world = init();
  ProcessGroup& group = world.group();
  const std::vector<std::optional<std::int64_t>> commits = {7, 8, std::nullopt, 8};
  const auto mine = commits[static_cast<std::size_t>(world.rank())];
  const Standing standing = compare_commits(group, mine);
  EXPECT_EQ(standing.source, 1);
  EXPECT_EQ(standing.givers, (std::vector<int>{1, 3}));
  EXPECT_EQ(standing.takers, (std::vector<int>{0, 2}));

  Snapshot own;
  if (world.rank() == 2) own.parts["model"].tensors["weight"] = torch::zeros(10, torch::kLong);
  const auto offer = [&] {
    EXPECT_EQ(world.rank(), 1);  // a small state comes from one
    HandedState offer{.state = {.step = 8}, .values = {{"best", INFINITY}}};
    offer.state.parts["model"].tensors["weight"] = torch::arange(10);
    return offer;
  };
  const auto give_up = [&](const StateOffer& coming) {
    EXPECT_EQ(coming.bytes, 80u);
    EXPECT_TRUE(coming.fits_in_memory());
    EXPECT_EQ(coming.part("model").at("tensors").size(), 1u);
    EXPECT_THROW(coming.part("optimizer"), InvalidArgument);
    return own;
  };
  const HandedState handed = hand_over(group, standing, {.offer = offer, .give_up = give_up});
  if (world.rank() == 2) {
    EXPECT_TRUE(torch::equal(own.parts.at("model").tensors.at("weight"), torch::arange(10)));
  }
  EXPECT_EQ(handed.values.at("best").get<double>(), INFINITY);
  EXPECT_EQ(handed.state.parts.size(), standing.takes(world.rank()) ? 1u : 0u);
  if (standing.takes(world.rank())) {
    EXPECT_TRUE(
        torch::equal(handed.state.parts.at("model").tensors.at("weight"), torch::arange(10)));
  }
  EXPECT_THROW(compare_commits(group, std::nullopt), Error);
  world.barrier();
}
