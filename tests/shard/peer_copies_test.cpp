// ShardedOptions::peer_copies: what the engine does of it, in loops by hand.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "shard/flat_layout.h"
#include "tests/ddp/models.h"
#include "tests/support/ranks.h"
#include "tests/support/refusal.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// Two units and a root, with a frozen layer, a buffer and odd shapes.
struct Copied : torch::nn::Module {
  explicit Copied(std::int64_t width) {
    in = register_module("in", torch::nn::Linear(7, width));
    for (int i = 0; i < 2; ++i) blocks->push_back(torch::nn::Linear(width, width));
    register_module("blocks", blocks);
    norm = register_module(
        "norm", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(width).affine(false)));
    frozen = register_module("frozen", torch::nn::Linear(width, width));
    for (at::Tensor& each : frozen->parameters()) each.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = in(input);
    for (int i = 0; i < 2; ++i) {
      const auto block = blocks[i];
      x = unit(*block, x, [&](const at::Tensor& x) {
        return torch::tanh(block->as<torch::nn::Linear>()->forward(x));
      });
    }
    return frozen(norm(x.to(at::kFloat)));
  }
  torch::nn::Linear in{nullptr}, frozen{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::ModuleList blocks;
};

std::shared_ptr<Copied> make_copied(std::int64_t width) {
  torch::manual_seed(6);
  return std::make_shared<Copied>(width);
}

// The state of the part and optimizer of the rank at that distance, as that rank has it.
State state_of_other(World& world, int distance, const State& mine) {
  State theirs;
  for (int rank = 0; rank < world.world_size(); ++rank) {
    nlohmann::json shapes = nlohmann::json::object();
    for (const auto& [name, tensor] : mine.tensors) shapes[name] = tensor.sizes().vec();
    shapes = world.group().broadcast_json(shapes, rank);
    for (const auto& [name, shape] : shapes.items()) {
      const at::Tensor tensor = rank == world.rank()
                                    ? mine.tensors.at(name).clone()
                                    : torch::empty(shape.get<std::vector<std::int64_t>>());
      world.group().broadcast(tensor, {.root = rank});
      if (rank == (world.rank() + distance) % world.world_size()) theirs.tensors[name] = tensor;
    }
  }
  return theirs;
}

void expect_same_tensors(const State& expected, const State& found, const std::string& what) {
  ASSERT_EQ(expected.tensors.size(), found.tensors.size()) << what;
  for (const auto& [name, tensor] : expected.tensors) {
    EXPECT_TRUE(equal_bits(tensor, found.tensors.at(name))) << what << ": " << name;
  }
}

struct CopyRun {
  ShardedOptions options;
  OptimizerOptions optimizer = AdamWOptions{.lr = 1e-2};
  std::int64_t width = 83;
  bool replaces_gradients = false;  // as a program may
  int distance = 1;
};

// Trains for some steps; the copies must then be what their owners have.
void expect_copies_keep_up(World& world, const CopyRun& run, const std::string& what) {
  ShardedDataParallel<Copied> sharded(world, make_copied(run.width), run.options);
  ShardedEngine& engine = sharded.engine();
  ASSERT_TRUE(engine.keeps_copy());
  EXPECT_EQ(engine.copy_distance(), run.distance);
  const auto of_other = [&](const State& mine) {
    return state_of_other(world, run.distance, mine);
  };
  engine.load_copy(of_other(engine.part_state(ShardPart::own)));
  const auto groups = decay_groups(sharded.module(), 0.1);
  const auto own = make_optimizer(engine.parts_of(groups), run.optimizer);
  const auto copy = make_optimizer(engine.parts_of(groups, ShardPart::copied), run.optimizer);
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(100 * step + world.rank());
    sharded.zero_grad();
    {
      const auto quiet = sharded.no_sync();
      sharded(torch::randn({6, 7}).to(run.options.gather_type.value_or(at::kFloat)))
          .pow(2)
          .mean()
          .backward();
    }
    sharded(torch::randn({6, 7}).to(run.options.gather_type.value_or(at::kFloat)))
        .pow(2)
        .mean()
        .backward();
    sharded.clip_grad_norm({.max_norm = 0.1});
    if (run.replaces_gradients && !sharded.parameters().empty()) {
      at::Tensor& gradient = sharded.parameters().front().tensor.mutable_grad();
      gradient = gradient * 3;
    }
    engine.exchange_copy_gradients();
    // A divisor, as Trainer has it for sums.
    const StepArguments arguments{.grad_scale = torch::full({}, 3.0)};
    own->step(arguments);
    copy->step(arguments);
    engine.drop_copy_gradients();
  }
  expect_same_tensors(of_other(engine.part_state(ShardPart::own)),
                      engine.part_state(ShardPart::copied), what + ", part");
  expect_same_tensors(of_other(own->state()), copy->state(), what + ", optimizer");
}

void expect_copies_keep_up_in_all_ways(const InitOptions& init_options = {}) {
  World world = init(init_options);
  torch::set_num_threads(1);
  for (const int stage : {1, 2, 3}) {
    const ShardedOptions options{
        .stage = static_cast<ShardStage>(stage), .units = {"blocks.*"}, .peer_copies = true};
    const std::string what = concat("stage ", stage);
    expect_copies_keep_up(world, {.options = options}, what);
    expect_copies_keep_up(
        world, {.options = options, .optimizer = SGDOptions{.lr = 1e-2, .momentum = 0.9}},
        what + ", SGD");
    expect_copies_keep_up(world, {.options = options, .width = 5}, what + ", few elements");
    ShardedOptions mixed = options;
    mixed.gather_type = at::kBFloat16;
    mixed.reduce_type = at::kFloat;
    expect_copies_keep_up(world, {.options = mixed}, what + ", whole parameters in bfloat16");
    expect_copies_keep_up(world, {.options = options, .replaces_gradients = true},
                          what + ", gradients replaced");
  }
}

}  // namespace

RANKS_TEST(PeerCopies, two_ranks_keep_what_the_other_has, 2) {
  expect_copies_keep_up_in_all_ways();
}
RANKS_TEST(PeerCopies, three_ranks_keep_what_the_next_has, 3) {
  expect_copies_keep_up_in_all_ways();
}
RANKS_TEST(PeerCopies, four_ranks_keep_what_the_next_has_over_gloo, 4) {
  expect_copies_keep_up_in_all_ways({.backend = "gloo"});
}

namespace {

// The width that leaves some ranks without a part, too.
void expect_copies_keep_up_on_machines() {
  World world = init();
  torch::set_num_threads(1);
  const ShardedOptions options{.units = {"blocks.*"}, .peer_copies = true};
  for (const std::int64_t width : {83, 5}) {
    expect_copies_keep_up(world, {.options = options, .width = width, .distance = 2},
                          concat("width ", width));
  }
}

}  // namespace

RANKS_TEST_WITH(PeerCopies, four_ranks_on_two_machines_keep_what_the_other_machine_has,
                {.count = 4, .machines = 2}) {
  expect_copies_keep_up_on_machines();
}
RANKS_TEST_WITH(PeerCopies, six_ranks_on_three_machines_keep_what_the_next_machine_has,
                {.count = 6, .machines = 3}) {
  expect_copies_keep_up_on_machines();
}

RANKS_TEST(PeerCopies, a_step_sends_the_gradients_of_a_part_and_holds_those_of_two, 3) {
  World world = init();
  const std::int64_t width = 83;
  ShardedDataParallel<Copied> plain(world, make_copied(width), {.units = {"blocks.*"}});
  ShardedDataParallel<Copied> sharded(world, make_copied(width),
                                      {.units = {"blocks.*"}, .peer_copies = true});
  std::int64_t part = 0;
  const auto add = [&](const std::vector<std::int64_t>& sizes) {
    part += FlatLayout(sizes, 3).shard_length() * 4;
  };
  for (int block = 0; block < 2; ++block) add({width * width, width});
  add({7 * width, width});
  EXPECT_EQ(sharded.memory().parameters - plain.memory().parameters, part);
  sharded(torch::randn({6, 7})).sum().backward();
  plain(torch::randn({6, 7})).sum().backward();
  sharded.engine().exchange_copy_gradients();
  EXPECT_EQ(sharded.memory().gradients - plain.memory().gradients, part);
  EXPECT_EQ(sharded.traffic().copies, part);
  EXPECT_EQ(sharded.traffic().gradients, plain.traffic().gradients);
  sharded.engine().drop_copy_gradients();
  EXPECT_EQ(sharded.memory().gradients, plain.memory().gradients);
}

RANKS_TEST(PeerCopies, are_refused_where_each_part_is_on_several_ranks_already, 2) {
  World world = init();
  EXPECT_NE(refusal([&] {
              ShardedDataParallel<Copied> sharded(world, make_copied(9),
                                                  {.replicas = 2, .peer_copies = true});
            }).find("peer_copies is set with replicas 2"),
            std::string::npos);
}

RANKS_TEST(PeerCopies, are_refused_on_one_rank, 1) {
  World world = init();
  EXPECT_NE(refusal([&] {
              ShardedDataParallel<Copied> sharded(world, make_copied(9), {.peer_copies = true});
            }).find("a copy at another takes two"),
            std::string::npos);
}
