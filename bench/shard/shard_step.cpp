// One C++ rank of the benchmark of models in parts; shard.py starts it and holds the Python side.
#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <limits>
#include <string>

#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "lockstep/world.h"

namespace {

using Clock = std::chrono::steady_clock;

// Python's in shard.py.
constexpr std::int64_t kWidth = 512, kInner = 2048, kBlocks = 6, kBatch = 16;

struct Block : torch::nn::Module {
  Block() {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::tanh(up(x))); }
  torch::nn::Linear up{kWidth, kInner}, down{kInner, kWidth};
};

struct Residual : torch::nn::Module {
  Residual() {
    register_module("into", into);
    for (int i = 0; i < kBlocks; ++i) blocks->push_back(std::make_shared<Block>());
    register_module("blocks", blocks);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor x = into(input);
    for (const auto& each : *blocks) {
      auto& block = *each->as<Block>();
      x = lockstep::unit(block, x, [&](const at::Tensor& x) { return block.forward(x); });
    }
    return out(x);
  }
  torch::nn::Linear into{kWidth, kWidth}, out{kWidth, kWidth};
  torch::nn::ModuleList blocks;
};

// Prints "<name> <parameters> <milliseconds per step> <bytes sent per step>" on rank 0.
template <typename Parallel>
void measure(lockstep::World& world, double seconds, const std::string& name, Parallel& parallel,
             const std::vector<lockstep::NamedParameter>& parameters, std::int64_t size,
             const std::function<std::int64_t()>& sent) {
  lockstep::AdamW optimizer(parameters, {.lr = 1e-4});
  const at::Tensor x = torch::rand({kBatch, kWidth});
  const auto seconds_of = [&](int steps) {
    const auto start = Clock::now();
    for (int i = 0; i < steps; ++i) {
      parallel(x).square().mean().backward();
      optimizer.step();
      parallel.zero_grad();
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  constexpr int kTimes = 10;
  seconds_of(2);
  const at::Tensor count = torch::tensor(seconds * 2 / seconds_of(2) / kTimes, torch::kDouble);
  world.group().broadcast(count);
  const int steps = std::max(1, static_cast<int>(count.item<double>()));
  world.barrier();
  double best = std::numeric_limits<double>::infinity();
  const std::int64_t sent_before = sent();
  for (int i = 0; i < kTimes; ++i) best = std::min(best, seconds_of(steps));
  if (world.rank() == 0) {
    std::cout << name << ' ' << size << ' ' << 1e3 * best / steps << ' '
              << (sent() - sent_before) / kTimes / steps << std::endl;
  }
}

void run(double seconds) {
  at::set_num_threads(1);
  lockstep::World world = lockstep::init({.device = "cpu"});
  torch::manual_seed(world.rank());
  std::int64_t size = 0;
  {
    auto model = std::make_shared<Residual>();
    for (const auto& parameter : model->parameters()) size += parameter.numel();
    lockstep::DistributedDataParallel<Residual> ddp(world, model);
    measure(world, seconds, "ddp", ddp, lockstep::named_parameters(*model), size,
            [] { return std::int64_t{0}; });  // nobody counts
  }
  for (const int stage : {1, 2, 3}) {
    lockstep::ShardedDataParallel<Residual> sharded(
        world, std::make_shared<Residual>(),
        {.stage = static_cast<lockstep::ShardStage>(stage), .units = {"blocks.*"}});
    measure(world, seconds, "stage_" + std::to_string(stage), sharded, sharded.parameters(), size,
            [&] { return sharded.traffic().parameters + sharded.traffic().gradients; });
  }
}

}  // namespace

int main(int argc, char** argv) try {
  run(argc > 1 ? std::stod(argv[1]) : 1.0);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
