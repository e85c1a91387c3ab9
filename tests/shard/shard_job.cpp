// One rank of sharded_jobs_test.py. Trains a GPT-2 of 30 million parameters, or a smaller one.
//
//   shard_job memory             each stage: predicted and measured bytes
//   shard_job traffic            each stage: bytes of a step by theory, by count, on the loopback
//   shard_job limit STAGE MIB    one stage in MIB more than the process has at its start
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include <sys/resource.h>

#include <torch/torch.h>

#include "lockstep/cpu_memory.h"
#include "lockstep/ddp.h"
#include "lockstep/error.h"
#include "lockstep/gpt2.h"
#include "lockstep/gpt2_memory.h"
#include "lockstep/memory_report.h"
#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "lockstep/world.h"
#include "shard/flat_layout.h"
#include "tests/support/link_bytes.h"

namespace {

using lockstep::Gpt2;
using lockstep::World;

constexpr std::int64_t kTokens = 64, kBatch = 1;

lockstep::Gpt2Config config_of(std::int64_t width, std::int64_t blocks) {
  lockstep::Gpt2Config config;
  config.vocab_size = 4096;
  config.n_positions = kTokens;
  config.n_embd = width;
  config.n_layer = blocks;
  config.n_head = 8;
  return config;
}
const lockstep::Gpt2Config kLarge = config_of(512, 9), kSmall = config_of(256, 4);

Gpt2 make_model(const lockstep::Gpt2Config& config) {
  Gpt2 model(config, {.seed = 1});
  model->set_dropout(0);
  return model;
}

/// A rank that trains in one of the stages.
class Run {
 public:
  Run(World& world, const lockstep::Gpt2Config& config, int stage)
      : world_(world), config_(config), model_(make_model(config)) {
    if (stage == 0) {
      ddp_.emplace(
          world, model_,
          lockstep::DistributedDataParallelOptions{.reduction = lockstep::Reduction::native});
      optimizer_.emplace(lockstep::named_parameters(*model_), lockstep::AdamWOptions{.lr = 1e-3});
    } else {
      sharded_.emplace(world, model_,
                       lockstep::ShardedOptions{.stage = static_cast<lockstep::ShardStage>(stage),
                                                .units = {"h.*"}});
      optimizer_.emplace(sharded_->parameters(), lockstep::AdamWOptions{.lr = 1e-3});
    }
  }

  double step() {
    torch::manual_seed(world_.rank());
    const at::Tensor ids = torch::randint(config_.vocab_size, {kBatch, kTokens}, torch::kLong);
    const at::Tensor labels = ids.roll(-1, 1);
    if (ddp_) {
      ddp_->zero_grad();
    } else {
      sharded_->zero_grad();
    }
    const lockstep::Gpt2Loss loss = ddp_ ? (*ddp_)(ids, labels) : (*sharded_)(ids, labels);
    (loss.sum / loss.count).backward();
    optimizer_->step();
    return loss.sum.item<double>() / loss.count;
  }

  lockstep::ShardedTraffic traffic() const {
    return sharded_ ? sharded_->traffic() : lockstep::ShardedTraffic{};
  }
  lockstep::MemoryByKind measured(std::int64_t peak) const {
    return lockstep::measured_memory(
        *model_, *optimizer_, sharded_ ? sharded_->memory() : lockstep::ShardedMemory{}, peak);
  }

 private:
  World& world_;
  lockstep::Gpt2Config config_;
  Gpt2 model_;
  std::optional<lockstep::DistributedDataParallel<lockstep::Gpt2Impl>> ddp_;
  std::optional<lockstep::ShardedDataParallel<lockstep::Gpt2Impl>> sharded_;
  std::optional<lockstep::AdamW> optimizer_;
};

void say(const std::string& line) {
  std::cout << line + "\n" << std::flush;
}

void compare_memory(World& world) {
  for (int stage = 0; stage <= 3; ++stage) {
    const auto before = static_cast<std::int64_t>(lockstep::cpu_memory().tensor_bytes);
    Run run(world, kLarge, stage);
    run.step();  // after it the optimizer has its state
    world.barrier();
    lockstep::reset_cpu_memory_peak();
    run.step();
    const auto peak = static_cast<std::int64_t>(lockstep::cpu_memory().peak_tensor_bytes) - before;
    const lockstep::MemoryByKind predicted = lockstep::predict_memory(
        lockstep::gpt2_sizes(kLarge, {.tokens = kTokens, .dropout = false}),
        {.stage = stage,
         .ranks = world.world_size(),
         .micro_batch = kBatch,
         .adds_on_receipt = true});
    say(lockstep::concat("stage ", stage, " predicted ", predicted.peak, " measured ", peak));
    if (world.rank() == 0) {
      std::cerr << lockstep::memory_table(
          {{"predicted", predicted}, {"measured", run.measured(peak)}});
    }
    world.barrier();
  }
}

// Every unit comes together once for forward and, where it is given up, once more for backward; its
// gradients go apart once.
lockstep::ShardedTraffic theory(const lockstep::Gpt2Config& config, int stage, int ranks) {
  const lockstep::ModelSizes sizes = lockstep::gpt2_sizes(config);
  lockstep::ShardedTraffic bytes;
  const auto add = [&](const std::vector<std::int64_t>& parameters, int times) {
    const lockstep::FlatLayout layout(parameters, ranks);
    const std::int64_t to_others = 4 * (layout.length() - layout.shard_length());
    bytes.parameters += times * to_others;
    bytes.gradients += to_others;
  };
  for (const auto& unit : sizes.units) add(unit, stage == 3 ? 2 : 1);
  add(sizes.root, 1);
  return bytes;
}

void compare_traffic(World& world) {
  for (int stage = 0; stage <= 3; ++stage) {
    Run run(world, kSmall, stage);
    run.step();
    run.step();
    const lockstep::ShardedTraffic before = run.traffic();
    world.barrier();
    const std::int64_t link_before = lockstep::testing::link_bytes("lo");
    world.barrier();
    constexpr int kSteps = 2;
    for (int i = 0; i < kSteps; ++i) run.step();
    world.barrier();
    const std::int64_t link = lockstep::testing::link_bytes("lo") - link_before;
    lockstep::ShardedTraffic counted = run.traffic();
    counted.parameters = (counted.parameters - before.parameters) / kSteps;
    counted.gradients = (counted.gradients - before.gradients) / kSteps;
    lockstep::ShardedTraffic expected = theory(kSmall, stage, world.world_size());
    if (stage == 0) {  // a ring's all-reduce of the gradients
      const std::int64_t all = 4 * kSmall.parameter_count();
      expected = {.gradients = 2 * all * (world.world_size() - 1) / world.world_size()};
    }
    if (world.rank() == 0) {
      // What is sent over the loopback is received there, too.
      say(lockstep::concat("stage ", stage, " theory ", expected.parameters, " ",
                           expected.gradients, " counted ", counted.parameters, " ",
                           counted.gradients, " link ", link / 2 / kSteps / world.world_size()));
    }
    world.barrier();
  }
}

// Of the process: memory that it can write and does not share.
std::int64_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmData:")) return std::stoll(line.substr(7)) * 1024;
  }
  throw lockstep::Error("/proc/self/status has no VmData");
}

// Before the first tensor: allocators may set aside a gigabyte for all that follow.
void limit_memory(std::int64_t mebibytes) {
  const auto limit = static_cast<rlim_t>(data_bytes() + (mebibytes << 20));
  const rlimit limits{.rlim_cur = limit, .rlim_max = limit};
  if (setrlimit(RLIMIT_DATA, &limits) != 0) throw lockstep::Error("setrlimit failed");
}

void train(World& world, int stage) {
  Run run(world, kLarge, stage);
  const double first = run.step();
  double last = first;
  for (int i = 0; i < 2; ++i) last = run.step();
  if (!(last < first)) throw lockstep::Error(lockstep::concat("loss ", first, " became ", last));
  if (world.rank() == 0) say("trained");
}

void run(const std::vector<std::string>& words) {
  if (words.at(0) == "limit") limit_memory(std::stoll(words.at(2)));
  at::set_num_threads(1);
  if (words.at(0) == "memory") lockstep::reuse_cpu_memory();  // it counts
  World world = lockstep::init({.backend = "gloo", .device = "cpu"});
  if (words.at(0) == "memory") return compare_memory(world);
  if (words.at(0) == "traffic") return compare_traffic(world);
  train(world, std::stoi(words.at(1)));
}

}  // namespace

int main(int argc, char** argv) try {
  run(std::vector<std::string>(argv + 1, argv + argc));
} catch (const std::exception& error) {
  std::cerr << lockstep::first_line(error.what()) << '\n';
  return 1;
}
