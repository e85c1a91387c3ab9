// Chapter 7: pieces of a loop by hand, one at a time:
//   lockstep run --nproc-per-node 2 07_pieces
//   inside|samplers|first|missing|accumulate|uneven|shard|fail
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/distributed_sampler.h"
#include "lockstep/error.h"
#include "lockstep/optimizer.h"
#include "lockstep/rank0_first.h"
#include "lockstep/record.h"
#include "lockstep/sharded.h"
#include "lockstep/step_profiler.h"
#include "lockstep/unit.h"
#include "lockstep/world.h"

using Arguments = std::vector<std::string>;

// One write for each line, so that lines of several ranks do not mix.
void say(lockstep::World& world, const std::string& text) {
  std::cout << "[rank" + std::to_string(world.rank()) + "] " + text + "\n" << std::flush;
}

std::string joined(const std::vector<std::int64_t>& numbers) {
  std::ostringstream text;
  for (const auto number : numbers) text << ' ' << number;
  return text.str();
}

double sum_of_weights(const torch::nn::Module& model) {
  double sum = 0;
  for (const auto& parameter : model.parameters()) sum += parameter.sum().item<double>();
  return sum;
}

// What happens in init, forward, backward and step; and a trace of it.
void inside(lockstep::World& world, const Arguments&) {
  say(world, "init: rank " + std::to_string(world.rank()) + " of " +
                 std::to_string(world.world_size()) + ", device " + world.device().str());

  torch::nn::Sequential model;
  for (int layer = 0; layer < 8; ++layer) model->push_back(torch::nn::Linear(512, 512));
  say(world, "before wrapping, the weights add up to " + std::to_string(sum_of_weights(*model)));
  lockstep::DistributedDataParallel ddp(world, model.ptr(), {.bucket_cap_mb = 2});
  say(world, "wrapped, they add up to " + std::to_string(sum_of_weights(*model)));

  torch::optim::SGD optimizer(model->parameters(), /*lr=*/1e-3);
  lockstep::StepProfiler profiler(
      {.first_step = 4, .steps = 1, .folder = ".", .rank = world.rank()}, world.device());
  for (int step = 0; step < 6; ++step) {
    profiler.before_step(step);
    ddp.zero_grad();
    const auto loss = ddp.forward(torch::rand({256, 512})).square().mean();
    const double before = step == 0 ? loss.item<double>() : 0;
    loss.backward();
    if (step == 0) {
      const auto gradient = model->parameters().front().grad().abs().sum().item<double>();
      say(world, "own loss " + std::to_string(before) + ", gradient after backward " +
                     std::to_string(gradient));
    }
    optimizer.step();
    profiler.after_step(step);
  }
  say(world, "buckets of " + ddp.logging_data()["rebuilt_bucket_sizes"] + " bytes");
}

// Who reads which samples, with and without set_epoch.
void samplers(lockstep::World& world, const Arguments&) {
  lockstep::DistributedSampler sampler(
      {.dataset_size = 10, .world_size = world.world_size(), .rank = world.rank()});
  for (int epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);
    say(world, "epoch " + std::to_string(epoch) + ":" + joined(sampler.indices()));
  }
  lockstep::DistributedSampler padded({.dataset_size = 9,
                                       .world_size = world.world_size(),
                                       .rank = world.rank(),
                                       .shuffle = false});
  say(world, "9 samples:" + joined(padded.indices()));
}

// Rank 0 prepares, the others find it done.
void first(lockstep::World& world, const Arguments&) {
  lockstep::rank0_first(world, [&] {
    if (std::filesystem::exists("data.txt")) {
      say(world, "data.txt is there");
    } else {
      std::ofstream("data.txt") << "prepared\n";
      say(world, "data.txt made");
    }
  });
  world.barrier();
  say(world, "past the barrier");
}

// A barrier that names who did not come.
void missing(lockstep::World& world, const Arguments&) {
  if (world.rank() == 1) return;
  world.monitored_barrier({.timeout = std::chrono::seconds(2)});
}

// 64 samples make one step, however they are divided among ranks and micro-batches.
void accumulate(lockstep::World& world, const Arguments& arguments) {
  const int micro_batches = arguments.empty() ? 1 : std::stoi(arguments.front());
  torch::manual_seed(0);
  const auto inputs = torch::rand({64, 20});
  const auto targets = torch::rand({64, 1});
  torch::nn::Linear model(20, 1);
  lockstep::DistributedDataParallel ddp(world, model);

  const int batch_size = 64 / (world.world_size() * micro_batches);
  for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    const int begin = (world.rank() * micro_batches + micro_batch) * batch_size;
    const auto backward = [&] {
      const auto output = ddp.forward(inputs.narrow(0, begin, batch_size));
      const auto loss = torch::mse_loss(output, targets.narrow(0, begin, batch_size));
      (loss / micro_batches).backward();
    };
    if (micro_batch < micro_batches - 1) {
      const auto no_sync = ddp.no_sync();  // forward and backward inside: nothing is sent
      backward();
    } else {
      backward();  // the mean of all that was added up
    }
  }
  say(world, std::to_string(micro_batches) + " micro-batches of " + std::to_string(batch_size) +
                 ": gradient " + std::to_string(model->weight.grad().norm().item<double>()));
}

// Rank 0 has five batches, the others three.
void uneven(lockstep::World& world, const Arguments& arguments) {
  torch::manual_seed(0);
  torch::nn::Linear model(20, 1);
  lockstep::DistributedDataParallel ddp(world, model);
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/1e-2);
  const int batches = world.rank() == 0 ? 5 : 3;
  const auto loop = [&] {
    for (int batch = 0; batch < batches; ++batch) {
      ddp.zero_grad();
      ddp.forward(torch::rand({32, 20})).mean().backward();
      optimizer.step();
    }
  };
  if (arguments.empty()) {
    ddp.join(loop);
  } else {
    loop();
  }
  say(world, std::to_string(batches) + " batches; the weights add up to " +
                 std::to_string(sum_of_weights(*model)));
}

// A model that says where its parts are.
struct BlocksImpl : torch::nn::Module {
  BlocksImpl() {
    for (int block = 0; block < 8; ++block) blocks->push_back(torch::nn::Linear(512, 512));
    register_module("blocks", blocks);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& block : *blocks) {
      auto& linear = *block->as<torch::nn::Linear>();
      x = lockstep::unit(linear, x, [&](const torch::Tensor& x) { return linear.forward(x); });
    }
    return x;
  }
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Blocks);

// Each rank keeps a part of what all of them have.
void shard(lockstep::World& world, const Arguments&) {
  for (const auto stage : {lockstep::ShardStage::optimizer, lockstep::ShardStage::gradients,
                           lockstep::ShardStage::parameters}) {
    torch::manual_seed(0);
    Blocks model;
    lockstep::ShardedDataParallel sharded(world, model, {.stage = stage, .units = {"blocks.*"}});
    lockstep::AdamW optimizer(sharded.parameters(), {.lr = 1e-3});
    double loss_of_step = 0;
    for (int step = 0; step < 3; ++step) {
      sharded.zero_grad();
      const auto loss = sharded.forward(torch::rand({16, 512})).square().mean();
      loss.backward();
      optimizer.step();
      loss_of_step = loss.item<double>();
    }
    const auto kept = sharded.memory();
    say(world, "stage " + std::to_string(static_cast<int>(stage)) + " keeps " +
                   std::to_string(kept.parameters >> 10) + " KiB of parameters and " +
                   std::to_string(kept.gradients >> 10) + " of gradients; loss " +
                   std::to_string(loss_of_step));
  }
}

// An exception on one rank.
void fail(lockstep::World& world, const Arguments&) {
  if (world.rank() == 1) throw std::runtime_error("the labels of sample 17 are missing");
  world.barrier();
}

int main(int argc, char** argv) {
  return lockstep::record([&] {
    const Arguments arguments(argv + 1, argv + argc);
    const std::map<std::string, std::function<void(lockstep::World&, const Arguments&)>> pieces = {
        {"inside", inside},         {"samplers", samplers}, {"first", first}, {"missing", missing},
        {"accumulate", accumulate}, {"uneven", uneven},     {"shard", shard}, {"fail", fail}};
    const auto piece = pieces.find(arguments.empty() ? "" : arguments.front());
    if (piece == pieces.end()) {
      throw lockstep::InvalidArgument(
          "usage: 07_pieces inside|samplers|first|missing|accumulate [N]|uneven "
          "[plain]|shard|fail");
    }
    lockstep::World world = lockstep::init();
    piece->second(world, Arguments(arguments.begin() + 1, arguments.end()));
    return 0;
  });
}
