// One rank of train_llm_shard_test.py: what a snapshot's model says about some ids.
//
//   logits_job CONFIG.json SNAPSHOTS STAGE IN.pt OUT    reads the newest snapshot into a model in
//   this stage of
//                                                       sharding (0: a plain one) and writes
//                                                       OUT.rank_R.pt
#include <iostream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/gpt2.h"
#include "lockstep/module_state.h"
#include "lockstep/sharded.h"
#include "lockstep/snapshot.h"
#include "lockstep/torch_file.h"
#include "lockstep/world.h"

namespace {

at::Tensor logits_of(lockstep::World& world, lockstep::Gpt2& model, const std::string& snapshots,
                     int stage, const at::Tensor& ids) {
  if (stage == 0) {
    lockstep::load_module_state(*model, lockstep::read_snapshot(snapshots).parts.at("model"));
    return model->forward(ids);
  }
  lockstep::ShardedDataParallel sharded(
      world, model,
      lockstep::ShardedOptions{.stage = static_cast<lockstep::ShardStage>(stage),
                               .units = {"h.*"}});
  lockstep::SnapshotStore store(world, {.directory = snapshots});
  const auto snapshot = store.load_newest(sharded.ranges());
  if (!snapshot) throw lockstep::Error("there is no snapshot in " + snapshots);
  sharded.load_state(snapshot->parts.at("model"));
  return sharded(ids);
}

void run(const std::vector<std::string>& words) {
  at::set_num_threads(1);
  const torch::NoGradGuard no_graph;
  lockstep::World world = lockstep::init({.device = "cpu"});
  // Weights of its own, which those of the snapshot have to replace.
  lockstep::Gpt2 model(lockstep::Gpt2Config::from_file(words.at(0)), {.seed = 77});
  model->eval();
  const at::Tensor ids = lockstep::load_pt(words.at(3)).to_tensor();
  const at::Tensor logits = logits_of(world, model, words.at(1), std::stoi(words.at(2)), ids);
  lockstep::save_pt(lockstep::concat(words.at(4), ".rank_", world.rank(), ".pt"), logits);
  world.barrier();
}

}  // namespace

int main(int argc, char** argv) try {
  run(std::vector<std::string>(argv + 1, argv + argc));
} catch (const std::exception& error) {
  std::cerr << lockstep::first_line(error.what()) << '\n';
  return 1;
}
