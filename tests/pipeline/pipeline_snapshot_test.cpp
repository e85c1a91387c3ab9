// Snapshots of pipelines: saved by all stages, loaded into other numbers of stages and whole
// models.
#include <filesystem>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/gpt2_parts.h"
#include "lockstep/mesh.h"
#include "lockstep/module_state.h"
#include "lockstep/snapshot.h"
#include "lockstep/world.h"
#include "tests/core/temporary_folder.h"
#include "tests/ddp/models.h"
#include "tests/pipeline/chain_model.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

constexpr int kMicroBatches = 3;
constexpr double kChainDecay = 0.1;

/// A pipeline with its optimizer and snapshots.
class SavedPipeline {
 public:
  SavedPipeline(World& world, const std::vector<PipelinePart>& parts,
                const PipelineOptions& options, const std::string& folder)
      : SavedPipeline(world, world.group(), parts, options, folder) {}
  SavedPipeline(World& world, const ProcessGroup& group, const std::vector<PipelinePart>& parts,
                const PipelineOptions& options, const std::string& folder)
      : pipeline(group, parts, options),
        optimizer(pipeline.decay_groups(kChainDecay), {.lr = 1e-2}),
        store_(world, {.directory = folder}) {}

  at::Tensor step(const ChainBatch& batch) {
    pipeline.zero_grad();
    const PipelineResult result = pipeline.train_step(batch.inputs, batch.targets);
    optimizer.step();
    return result.loss;
  }

  void save(std::int64_t step) {
    store_.save({.step = step,
                 .parts = {{"model", pipeline.state()},
                           {"optimizer", pipeline.optimizer_state(optimizer)}}});
    store_.wait();
    EXPECT_EQ(store_.last_error(), "");
    EXPECT_EQ(store_.last_saved(), step);
  }

  void load(std::int64_t step) {
    const auto snapshot = store_.load_newest(pipeline.ranges());
    ASSERT_TRUE(snapshot.has_value());
    EXPECT_EQ(snapshot->step, step);
    pipeline.load_state(snapshot->parts.at("model"));
    pipeline.load_optimizer_state(optimizer, snapshot->parts.at("optimizer"));
    EXPECT_EQ(pipeline.next_step(), step);
  }

  Pipeline pipeline;
  AdamW optimizer;

 private:
  SnapshotStore store_;
};

// One process that is never stopped: its losses, and its tensors at the end.
struct WholeRun {
  std::vector<at::Tensor> losses;
  std::map<std::string, at::Tensor> tensors;
};

WholeRun train_chain(int first, int last, const Snapshot* from = nullptr) {
  ChainReference reference(chain_parts());
  AdamW optimizer(decay_groups(reference.module(), kChainDecay), {.lr = 1e-2});
  if (from != nullptr) {
    load_module_state(reference.module(), from->parts.at("model"));
    optimizer.load_state(from->parts.at("optimizer"));
  }
  WholeRun run;
  for (int step = first; step < last; ++step) {
    reference.module().zero_grad();
    run.losses.push_back(reference.accumulate(chain_batch(step, 0, 8), kMicroBatches));
    optimizer.step();
  }
  run.tensors = tensors_by_name(reference.module());
  return run;
}

// What the last stage has; equal bits of every step.
void expect_losses(SavedPipeline& saved, const WholeRun& whole, int first, int last) {
  for (int step = first; step < last; ++step) {
    const at::Tensor loss = saved.step(chain_batch(step, 0, 8));
    if (!saved.pipeline.is_last()) continue;
    EXPECT_TRUE(equal_bits(loss.reshape({}), whole.losses.at(step).reshape({}))) << step;
  }
}

}  // namespace

RANKS_TEST(PipelineSnapshot, of_two_stages_goes_on_in_three_and_in_one_process, 3) {
  torch::set_num_threads(1);
  TemporaryFolder mine;
  std::string folder;
  const WholeRun whole = train_chain(0, 6);
  const PipelineOptions options{.micro_batches = kMicroBatches, .loss = chain_loss};
  {
    World all = init({.epoch = 1});
    folder = all.group().broadcast_string(mine / "s", 0);
  }
  if (this_rank() < 2) {
    World world = init({.rank = this_rank(), .world_size = 2, .epoch = 2});
    SavedPipeline saved(world, chain_parts(), options, folder);
    expect_losses(saved, whole, 0, 2);
    saved.save(2);
    expect_losses(saved, whole, 2, 3);  // what is written is a copy
    world.barrier();
  }
  World world = init({.epoch = 3});
  {
    // Another division: of five parts the second stage has one.
    PipelineOptions divided = options;
    divided.split = {2, 1, 2};
    SavedPipeline saved(world, chain_parts(), divided, folder);
    saved.load(2);
    expect_losses(saved, whole, 2, 4);
    saved.save(4);
  }
  world.barrier();
  const Snapshot snapshot = read_snapshot(folder);
  EXPECT_EQ(snapshot.step, 4);
  const WholeRun rest = train_chain(4, 6, &snapshot);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(equal_bits(rest.losses[i], whole.losses[4 + i])) << i;
  ASSERT_EQ(rest.tensors.size(), whole.tensors.size());
  for (const auto& [name, tensor] : whole.tensors) {
    EXPECT_TRUE(equal_bits(rest.tensors.at(name), tensor)) << name;
  }
  world.barrier();
}

namespace {

Gpt2 saved_tiny_gpt2() {
  Gpt2Config config;
  config.vocab_size = 101;
  config.n_positions = 24;
  config.n_embd = 36;
  config.n_layer = 3;
  config.n_head = 3;
  Gpt2 model(config, {.seed = 5});
  model->set_dropout(0);
  return model;
}

ChainBatch saved_tokens(int step) {
  torch::manual_seed(70 + step);
  const at::Tensor ids = torch::randint(101, {6, 20}, torch::kLong);
  return {.inputs = {ids}, .targets = {ids.roll(-1, 1)}};
}

// The plain model from step `first` on, of which `from` has what it needs; the losses.
std::vector<at::Tensor> train_plain_gpt2(Gpt2& model, int first, int last, const Snapshot* from) {
  AdamW optimizer(decay_groups(*model, kChainDecay), {.lr = 1e-2});
  if (from != nullptr) {
    load_module_state(*model, from->parts.at("model"));
    optimizer.load_state(from->parts.at("optimizer"));
  }
  std::vector<at::Tensor> losses;
  for (int step = first; step < last; ++step) {
    const ChainBatch batch = saved_tokens(step);
    model->zero_grad();
    at::Tensor sum = torch::zeros({});
    for (int i = 0; i < 2; ++i) {
      const at::Tensor loss = gpt2_parts_loss({model->forward(batch.inputs[0].narrow(0, 3 * i, 3))},
                                              {batch.targets[0].narrow(0, 3 * i, 3)}) *
                              0.5;
      loss.backward();
      sum = sum + loss.detach();
    }
    optimizer.step();
    losses.push_back(sum);
  }
  return losses;
}

SavedPipeline gpt2_pipeline(World& world, const std::string& folder) {
  Gpt2Parts list = gpt2_parts(saved_tiny_gpt2());
  return SavedPipeline(world, list.parts,
                       {.micro_batches = 2,
                        .loss = gpt2_parts_loss,
                        .ties = list.ties,
                        .tie_sum = TieSum::each_micro_batch},
                       folder);
}

void expect_gpt2_losses(SavedPipeline& saved, const std::vector<at::Tensor>& whole, int first,
                        int last) {
  for (int step = first; step < last; ++step) {
    const at::Tensor loss = saved.step(saved_tokens(step));
    if (!saved.pipeline.is_last()) continue;
    EXPECT_TRUE(equal_bits(loss.reshape({}), whole.at(step))) << step;
  }
}

}  // namespace

// The embedding is tied to the head, on two stages, and one tensor of the whole model.
RANKS_TEST(PipelineSnapshot, of_a_gpt2_has_the_names_of_the_whole_model, 3) {
  torch::set_num_threads(1);
  TemporaryFolder mine;
  std::string folder;
  Gpt2 model = saved_tiny_gpt2();
  const std::vector<at::Tensor> whole = train_plain_gpt2(model, 0, 6, nullptr);
  {
    World all = init({.epoch = 1});
    folder = all.group().broadcast_string(mine / "s", 0);
  }
  if (this_rank() < 2) {
    World world = init({.rank = this_rank(), .world_size = 2, .epoch = 2});
    SavedPipeline saved = gpt2_pipeline(world, folder);
    expect_gpt2_losses(saved, whole, 0, 2);
    saved.save(2);
    world.barrier();
  }
  World world = init({.epoch = 3});
  {
    SavedPipeline saved = gpt2_pipeline(world, folder);
    saved.load(2);
    expect_gpt2_losses(saved, whole, 2, 4);
    saved.save(4);
  }
  world.barrier();
  const Snapshot snapshot = read_snapshot(folder);
  std::set<std::string> names, expected;
  for (const auto& [name, tensor] : snapshot.parts.at("model").tensors) names.insert(name);
  for (const auto& item : model->named_parameters()) expected.insert(item.key());
  EXPECT_EQ(names, expected);
  Gpt2 plain = saved_tiny_gpt2();
  const std::vector<at::Tensor> rest = train_plain_gpt2(plain, 4, 6, &snapshot);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(equal_bits(rest[i], whole[4 + i])) << i;
  for (const auto& item : plain->named_parameters()) {
    EXPECT_TRUE(equal_bits(item.value(), model->named_parameters()[item.key()])) << item.key();
  }
  world.barrier();
}

// And a plain model's snapshot goes into a pipeline.
RANKS_TEST(PipelineSnapshot, of_a_plain_gpt2_goes_into_two_stages, 2) {
  torch::set_num_threads(1);
  World world = init();
  TemporaryFolder mine;
  const std::string folder = world.group().broadcast_string(mine / "s", 0);
  Gpt2 model = saved_tiny_gpt2();
  AdamW optimizer(decay_groups(*model, kChainDecay), {.lr = 1e-2});
  {
    const ChainBatch batch = saved_tokens(0);
    gpt2_parts_loss({model->forward(batch.inputs[0])}, batch.targets).backward();
    optimizer.step();
    SnapshotStore store(world, {.directory = folder});
    store.save(
        {.step = 1, .parts = {{"model", module_state(*model)}, {"optimizer", optimizer.state()}}});
    store.wait();
  }
  world.barrier();
  const Snapshot snapshot = read_snapshot(folder);
  const std::vector<at::Tensor> expected = train_plain_gpt2(model, 1, 3, &snapshot);
  SavedPipeline saved = gpt2_pipeline(world, folder);
  saved.pipeline.set_next_step(1);  // which a plain snapshot does not tell
  saved.load(1);
  for (int step = 1; step < 3; ++step) {
    const at::Tensor loss = saved.step(saved_tokens(step));
    if (saved.pipeline.is_last()) {
      EXPECT_TRUE(equal_bits(loss.reshape({}), expected[step - 1])) << step;
    }
  }
  world.barrier();
}

// Of ranks with the same stage one has the tensors.
RANKS_TEST(PipelineSnapshot, of_stages_on_several_ranks_has_each_tensor_once, 4) {
  torch::set_num_threads(1);
  World world = init();
  TemporaryFolder mine;
  const std::string folder = world.group().broadcast_string(mine / "s", 0);
  Mesh mesh(world, {{"pipeline", 2}, {"data", 2}});
  const PipelineOptions options{
      .micro_batches = kMicroBatches, .loss = chain_loss, .data_group = mesh.group("data")};
  const auto make = [&] {
    return SavedPipeline(world, mesh.group("pipeline"), chain_parts(), options, folder);
  };
  const auto batch_at = [&](int step) { return chain_batch(step, world.rank() % 2, 8); };
  std::vector<at::Tensor> expected;
  {
    SavedPipeline saved = make();
    for (int step = 0; step < 2; ++step) saved.step(batch_at(step));
    saved.save(2);
    for (int step = 2; step < 4; ++step) expected.push_back(saved.step(batch_at(step)));
  }
  SavedPipeline saved = make();
  saved.load(2);
  for (int step = 2; step < 4; ++step) {
    const at::Tensor loss = saved.step(batch_at(step));
    // Statistics of BatchNorm are each rank's own, and the first one's are saved; training does not
    // look at them.
    if (!saved.pipeline.is_last()) continue;
    EXPECT_TRUE(equal_bits(loss, expected[step - 2])) << step;
  }
  EXPECT_EQ(read_snapshot(folder).parts.at("model").tensors.size(),
            tensors_by_name(ChainReference(chain_parts()).module()).size());
  world.barrier();
}

RANKS_TEST(PipelineSnapshot, of_another_model_is_refused, 2) {
  World world = init();
  TemporaryFolder mine;
  const std::string folder = world.group().broadcast_string(mine / "s", 0);
  const PipelineOptions options{.micro_batches = 2, .loss = chain_loss};
  {
    SavedPipeline saved(world, chain_parts(/*blocks=*/2), options, folder);
    saved.save(1);
  }
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  Pipeline larger(world.group(), chain_parts(/*blocks=*/3), options);
  SnapshotStore store(world, {.directory = folder});
  const std::string said = refusal([&] { store.load_newest(larger.ranges()); });
  EXPECT_NE(said.find("its model has no 'block2.down.bias'"), std::string::npos) << said;
  const Snapshot whole = read_snapshot(folder);
  const std::string lacks = refusal([&] { larger.load_state(whole.parts.at("model")); });
  if (larger.is_last()) {
    EXPECT_EQ(lacks, "the state does not fit: it lacks 'block2.up.weight' of this stage");
  }
  Pipeline smaller(world.group(), chain_parts(/*blocks=*/1), options);
  const std::string strange = refusal([&] { smaller.load_state(whole.parts.at("model")); });
  EXPECT_EQ(strange, "the state does not fit: 'block1.down.bias' is in no stage of this pipeline");

  // Two tensors cannot have one name.
  std::vector<PipelinePart> parts = chain_parts(2);
  parts[2].saved_as = "block0";
  const std::string twice = refusal([&] { Pipeline pipeline(world.group(), parts, options); });
  EXPECT_NE(twice.find("'block0.up.weight' and 'block1.up.weight' are both called "
                       "'block0.up.weight' in the whole model, and are not tied"),
            std::string::npos)
      << twice;
  world.barrier();
}
