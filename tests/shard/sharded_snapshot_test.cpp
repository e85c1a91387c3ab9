#include <chrono>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/c10d.h"
#include "lockstep/ddp.h"
#include "lockstep/error.h"
#include "lockstep/gpt2.h"
#include "lockstep/module_state.h"
#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "lockstep/snapshot.h"
#include "tests/core/temporary_folder.h"
#include "tests/snapshot/support.h"
#include "tests/support/ranks.h"
#include "tests/support/survivors.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

constexpr double kWeightDecay = 0.1;

Gpt2 saved_gpt2(std::int64_t layers = 2) {
  Gpt2Config config;
  config.vocab_size = 101;
  config.n_positions = 24;
  config.n_embd = 36;
  config.n_layer = layers;
  config.n_head = 3;
  Gpt2 model(config, {.seed = 5});
  model->set_dropout(0);
  return model;
}

// Steps on the same data as any other world of as many ranks.
template <typename Parallel>
void take_steps(Parallel& parallel, Optimizer& optimizer, int rank, int first, int last) {
  for (int step = first; step < last; ++step) {
    torch::manual_seed(10 * step + rank);
    const at::Tensor ids = torch::randint(101, {3, 20}, torch::kLong);
    parallel.zero_grad();
    const Gpt2Loss loss = parallel(ids, ids.roll(-1, 1));
    (loss.sum / loss.count).backward();
    optimizer.step();
  }
}

using Weights = std::map<std::string, at::Tensor>;

Weights gpt2_weights(Gpt2& model) {
  Weights weights;
  for (const auto& each : model->named_parameters()) {
    weights[each.key()] = each.value().detach().clone();
  }
  return weights;
}

template <typename M>
Weights gathered_weights(ShardedDataParallel<M>& sharded, Gpt2& model) {
  Weights weights;
  sharded.with_whole_parameters([&] { weights = gpt2_weights(model); });
  return weights;
}

void expect_same_weights(const Weights& expected, const Weights& found, const std::string& what) {
  ASSERT_EQ(expected.size(), found.size()) << what;
  for (const auto& [name, weight] : expected) {
    EXPECT_TRUE(torch::equal(weight, found.at(name))) << what << ": " << name;
  }
}

// A folder that all ranks have, removed by rank 0.
std::string folder_of_all(World& world, const TemporaryFolder& mine) {
  return world.group().broadcast_string(mine / "s", 0);
}

template <typename M>
Snapshot sharded_snapshot(std::int64_t step, ShardedDataParallel<M>& sharded,
                          const Optimizer& optimizer) {
  Snapshot snapshot{.step = step};
  snapshot.parts["model"] = sharded.state();
  snapshot.parts["optimizer"] = sharded.optimizer_state(optimizer);
  snapshot.parts["trainer"].values = {{"step", step}};
  return snapshot;
}

template <typename M>
void load_into(SnapshotStore& store, ShardedDataParallel<M>& sharded, Optimizer& optimizer) {
  const auto snapshot = store.load_newest(sharded.ranges());
  ASSERT_TRUE(snapshot.has_value());
  EXPECT_EQ(snapshot->parts.at("trainer").values.at("step"), snapshot->step);
  sharded.load_state(snapshot->parts.at("model"));
  sharded.load_optimizer_state(optimizer, snapshot->parts.at("optimizer"));
}

// After a snapshot, on the ranks of `world`: two steps of a plain run that has read it whole.
Weights go_on_plainly(World& world, const std::string& folder) {
  const Snapshot whole = read_snapshot(folder);
  Gpt2 model = saved_gpt2();
  load_module_state(*model, whole.parts.at("model"));
  DistributedDataParallel ddp(world, model);
  AdamW optimizer(decay_groups(*model, kWeightDecay), {.lr = 1e-3});
  optimizer.load_state(whole.parts.at("optimizer"));
  take_steps(ddp, optimizer, world.rank(), 2, 4);
  return gpt2_weights(model);
}

Weights go_on_in_parts(World& world, const std::string& folder, const ShardedOptions& options) {
  SnapshotStore store(world, {.directory = folder});
  Gpt2 model = saved_gpt2();
  ShardedDataParallel sharded(world, model, options);
  AdamW optimizer(sharded.decay_groups(kWeightDecay), {.lr = 1e-3});
  load_into(store, sharded, optimizer);
  take_steps(sharded, optimizer, world.rank(), 2, 4);
  return gathered_weights(sharded, model);
}

// Of the same ids everywhere, without a step.
at::Tensor logits_in_parts(World& world, const std::string& folder, const ShardedOptions& options) {
  const torch::NoGradGuard no_graph;
  SnapshotStore store(world, {.directory = folder});
  Gpt2 model = saved_gpt2();
  ShardedDataParallel sharded(world, model, options);
  AdamW optimizer(sharded.decay_groups(kWeightDecay), {.lr = 1e-3});
  load_into(store, sharded, optimizer);
  return sharded(torch::arange(40).reshape({2, 20}));
}

at::Tensor plain_logits(const std::string& folder) {
  const torch::NoGradGuard no_graph;
  Gpt2 model = saved_gpt2();
  load_module_state(*model, read_snapshot(folder).parts.at("model"));
  return model->forward(torch::arange(40).reshape({2, 20}));
}

const std::vector<std::string> kOnlyTheTests = {"lockstep/snapshot/for_comparison"};

// Those of saves among the keys of the job's store, while no rank saves.
std::vector<std::string> keys_of_saves(World& world) {
  world.store().set("lockstep/snapshot/for_comparison", "1");
  world.barrier();
  std::vector<std::string> keys = unwrap(world.store())->listKeys();
  std::erase_if(keys, [](const std::string& key) { return !has(key, "lockstep/snapshot/"); });
  world.barrier();
  return keys;
}

void flip_bit_in(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char last = static_cast<char>(file.peek() ^ 1);
  file.seekp(-1, std::ios::end);
  file.put(last);
}

}  // namespace

RANKS_TEST(ShardedSnapshot, of_four_ranks_in_stage_3_goes_into_any_other_run, 4) {
  torch::set_num_threads(1);
  TemporaryFolder mine;
  std::string folder;
  Weights expected;
  {
    World world = init({.epoch = 1});
    folder = folder_of_all(world, mine);
    Gpt2 model = saved_gpt2();
    ShardedDataParallel sharded(world, model, {.units = {"h.*"}});
    AdamW optimizer(sharded.decay_groups(kWeightDecay), {.lr = 1e-3});
    SnapshotStore store(world, {.directory = folder});
    take_steps(sharded, optimizer, world.rank(), 0, 2);
    store.save(sharded_snapshot(2, sharded, optimizer));
    expected = gathered_weights(sharded, model);
    take_steps(sharded, optimizer, world.rank(), 2, 4);  // what is written is a copy
    store.wait();
    EXPECT_EQ(store.last_error(), "");
    EXPECT_EQ(store.last_saved(), 2);
    for (int rank = 0; rank < 4; ++rank) {
      const std::string file = concat(folder, "/step_2/model.rank_", rank, ".safetensors");
      EXPECT_TRUE(std::filesystem::exists(file)) << file;
    }
    EXPECT_FALSE(std::filesystem::exists(folder + "/step_2/model.safetensors"));
    world.barrier();
    Gpt2 whole = saved_gpt2();
    load_module_state(*whole, read_snapshot(folder).parts.at("model"));
    expect_same_weights(expected, gpt2_weights(whole), "one process");
    expect_same_weights(go_on_plainly(world, folder),
                        go_on_in_parts(world, folder, {.units = {"h.*"}}), "four ranks, stage 3");
    EXPECT_TRUE(
        torch::equal(plain_logits(folder), logits_in_parts(world, folder, {.units = {"h.*"}})));
    world.barrier();
  }
  if (this_rank() < 2) {
    World world = init({.rank = this_rank(), .world_size = 2, .epoch = 2});
    const Weights plain = go_on_plainly(world, folder);
    for (const ShardStage stage :
         {ShardStage::optimizer, ShardStage::gradients, ShardStage::parameters}) {
      expect_same_weights(plain, go_on_in_parts(world, folder, {.stage = stage, .units = {"h.*"}}),
                          concat("two ranks, stage ", static_cast<int>(stage)));
    }
    EXPECT_TRUE(torch::equal(
        plain_logits(folder),
        logits_in_parts(world, folder, {.stage = ShardStage::optimizer, .units = {"h.*"}})));
    // The units need not be the same either.
    expect_same_weights(plain, go_on_in_parts(world, folder, {}), "two ranks, no units");
    world.barrier();
  }
  World all = init({.epoch = 3});
  all.barrier();  // rank 0 removes the folder
}

// Every element is written once, whoever holds it, and goes to all who hold it.
RANKS_TEST(ShardedSnapshot, of_two_copies_goes_into_one_and_the_reverse, 4) {
  torch::set_num_threads(1);
  World world = init();
  TemporaryFolder mine;
  for (const int replicas : {2, 4, 1}) {
    const std::string folder = concat(folder_of_all(world, mine), replicas);
    std::int64_t written = 0;
    {
      Gpt2 model = saved_gpt2();
      ShardedDataParallel sharded(world, model, {.units = {"h.*"}, .replicas = replicas});
      AdamW optimizer(sharded.decay_groups(kWeightDecay), {.lr = 1e-3});
      SnapshotStore store(world, {.directory = folder});
      take_steps(sharded, optimizer, world.rank(), 0, 2);
      const Snapshot snapshot = sharded_snapshot(2, sharded, optimizer);
      store.save(snapshot);
      store.wait();
      EXPECT_EQ(store.last_error(), "");
      std::int64_t mine_written = 0;
      for (const NamedParameter& each : sharded.parameters()) {
        const auto found = snapshot.parts.at("model").tensors.find(each.name);
        if (found != snapshot.parts.at("model").tensors.end()) {
          mine_written += found->second.numel();
        }
      }
      for (const nlohmann::json& each : world.group().all_gather_json(mine_written)) {
        written += each.get<std::int64_t>();
      }
      std::int64_t all = 0;
      for (const auto& each : model->named_parameters()) all += each.value().numel();
      EXPECT_EQ(written, all) << replicas;
    }
    world.barrier();
    const Weights plain = go_on_plainly(world, folder);
    for (const int other : {1, 2, 4}) {
      expect_same_weights(plain,
                          go_on_in_parts(world, folder, {.units = {"h.*"}, .replicas = other}),
                          concat("saved with ", replicas, " replicas, gone on with ", other));
    }
    world.barrier();
  }
}

// No operation of the group tells the others: they wait for its share.
RANKS_TEST_WITH(ShardedSnapshot, of_a_rank_that_is_gone_is_given_up, {.count = 3, .killed = {2}}) {
  torch::set_num_threads(1);
  World world = init();
  TemporaryFolder mine;
  const std::string folder = folder_of_all(world, mine);
  Gpt2 model = saved_gpt2();
  ShardedDataParallel sharded(world, model, {.units = {"h.*"}});
  AdamW optimizer(sharded.decay_groups(kWeightDecay), {.lr = 1e-3});
  SnapshotStore store(world, {.directory = folder});
  take_steps(sharded, optimizer, world.rank(), 0, 1);
  const Snapshot snapshot = sharded_snapshot(1, sharded, optimizer);
  world.barrier();
  if (world.rank() == 2) kill_this_process();
  store.save(snapshot);
  store.wait();
  EXPECT_NE(store.last_error().find("a rank was lost"), std::string::npos) << store.last_error();
  EXPECT_FALSE(std::filesystem::exists(folder + "/step_1"));
  await_survivors(world, {2});  // nor may who ends first take the folder along
}

RANKS_TEST(ShardedSnapshot, a_plain_snapshot_goes_into_a_sharded_run, 3) {
  torch::set_num_threads(1);
  World world = init();
  TemporaryFolder mine;
  const std::string folder = folder_of_all(world, mine);
  {
    Gpt2 model = saved_gpt2();
    DistributedDataParallel ddp(world, model);
    AdamW optimizer(decay_groups(*model, kWeightDecay), {.lr = 1e-3});
    take_steps(ddp, optimizer, world.rank(), 0, 2);
    SnapshotStore store(world, {.directory = folder});
    Snapshot snapshot{.step = 2};
    snapshot.parts["model"] = module_state(*model);
    snapshot.parts["optimizer"] = optimizer.state();
    snapshot.parts["trainer"].values = {{"step", 2}};
    store.save(snapshot);
    store.wait();
  }
  world.barrier();
  expect_same_weights(go_on_plainly(world, folder),
                      go_on_in_parts(world, folder, {.units = {"h.*"}}), "stage 3");
  world.barrier();
}

RANKS_TEST(ShardedSnapshot, a_damaged_or_missing_file_costs_that_snapshot, 2) {
  World world = init();
  TemporaryFolder mine;
  const std::string folder = folder_of_all(world, mine);
  Gpt2 model = saved_gpt2();
  ShardedDataParallel sharded(world, model, {.units = {"h.*"}});
  AdamW optimizer(sharded.decay_groups(kWeightDecay), {.lr = 1e-3});
  Lines lines;
  SnapshotStore store(world, {.directory = folder, .report = lines.sink()});
  for (int step = 1; step <= 3; ++step) {
    take_steps(sharded, optimizer, world.rank(), step - 1, step);
    store.save(sharded_snapshot(step, sharded, optimizer));
  }
  store.wait();
  world.barrier();
  if (this_rank() == 0) {
    std::filesystem::remove(folder + "/step_3/optimizer.rank_1.safetensors");
    flip_bit_in(folder + "/step_2/model.rank_1.safetensors");
  }
  world.barrier();
  const auto loaded = store.load_newest(sharded.ranges());
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(loaded->step, 1);
  if (this_rank() == 0) {
    const auto said = lines.all();
    ASSERT_EQ(said.size(), 2u);
    EXPECT_TRUE(has(said[0], "optimizer.rank_1.safetensors is missing")) << said[0];
    EXPECT_TRUE(has(said[1], "model.rank_1.safetensors is damaged")) << said[1];
  }
  try {
    read_snapshot(folder + "/step_3");
    ADD_FAILURE() << "a snapshot without a rank's file was read";
  } catch (const Error& error) {
    EXPECT_TRUE(has(error.what(), "optimizer.rank_1.safetensors")) << error.what();
  }
  world.barrier();
}

RANKS_TEST(ShardedSnapshot, of_another_model_is_refused_on_every_rank, 2) {
  World world = init();
  TemporaryFolder mine;
  const std::string folder = folder_of_all(world, mine);
  SnapshotStore store(world, {.directory = folder});
  {
    Gpt2 model = saved_gpt2();
    ShardedDataParallel sharded(world, model, {.units = {"h.*"}});
    AdamW optimizer(sharded.decay_groups(kWeightDecay), {.lr = 1e-3});
    take_steps(sharded, optimizer, world.rank(), 0, 1);
    store.save(sharded_snapshot(1, sharded, optimizer));
    store.wait();
  }
  Gpt2 larger = saved_gpt2(/*layers=*/3);
  ShardedDataParallel sharded(world, larger, {.units = {"h.*"}});
  try {
    store.load_newest(sharded.ranges());
    ADD_FAILURE() << "a model with more layers took it";
  } catch (const InvalidArgument& error) {
    EXPECT_TRUE(has(error.what(), "its model has no 'h.2.attn.c_attn.bias'")) << error.what();
  }
  world.barrier();
}

RANKS_TEST(ShardedSnapshot, a_rank_that_cannot_write_costs_the_save_and_leaves_nothing, 3) {
  World world = init();
  TemporaryFolder mine;
  const std::string folder = folder_of_all(world, mine);
  Gpt2 model = saved_gpt2();
  ShardedDataParallel sharded(world, model, {.units = {"h.*"}});
  AdamW optimizer(sharded.decay_groups(kWeightDecay), {.lr = 1e-3});
  take_steps(sharded, optimizer, world.rank(), 0, 1);
  Lines lines;
  const std::string place = this_rank() == 2 ? mine / "not_there" : folder;
  SnapshotStore store(world, {.directory = place, .report = lines.sink()});
  store.save(sharded_snapshot(1, sharded, optimizer));
  store.wait();
  EXPECT_TRUE(has(store.last_error(), "rank 2: ")) << store.last_error();
  EXPECT_FALSE(store.last_saved().has_value());
  world.barrier();
  EXPECT_EQ(lines.all().size(), this_rank() == 0 ? 1u : 0u);
  EXPECT_EQ(keys_of_saves(world), kOnlyTheTests);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_EQ(entry.path().filename(), ".lock");
  }
  world.barrier();
}

RANKS_TEST(ShardedSnapshot, leaves_no_keys_in_the_store, 3) {
  World world = init();
  TemporaryFolder mine;
  const std::string folder = folder_of_all(world, mine);
  Gpt2 model = saved_gpt2();
  ShardedDataParallel sharded(world, model, {.units = {"h.*"}});
  AdamW optimizer(sharded.decay_groups(kWeightDecay), {.lr = 1e-3});
  SnapshotStore store(world, {.directory = folder});
  for (int step = 1; step <= 3; ++step) {
    store.save(sharded_snapshot(step, sharded, optimizer));
    store.wait();
    EXPECT_EQ(store.last_saved(), step);
    EXPECT_EQ(keys_of_saves(world), kOnlyTheTests);
  }
}

// Rank 1 would wait for rank 0's key, rank 0 for rank 1's share, and that for the connection that
// rank 1 waits on.
RANKS_TEST(ShardedSnapshot, is_written_while_the_program_waits_in_the_store, 2) {
  World world = init();
  TemporaryFolder mine;
  const std::string folder = folder_of_all(world, mine);
  Gpt2 model = saved_gpt2();
  ShardedDataParallel sharded(world, model, {.units = {"h.*"}});
  AdamW optimizer(sharded.decay_groups(kWeightDecay), {.lr = 1e-3});
  SnapshotStore store(world, {.directory = folder});
  const Snapshot snapshot = sharded_snapshot(1, sharded, optimizer);
  if (world.rank() == 1) {
    store.save(snapshot);
    world.store().set("begun", "1");
    world.store().wait({"saved"}, std::chrono::minutes(1));
  } else {
    world.store().wait({"begun"}, std::chrono::minutes(1));
    store.save(snapshot);
    store.wait();
    world.store().set("saved", "1");
  }
  store.wait();
  EXPECT_EQ(store.last_saved(), 1);
  world.barrier();
}
