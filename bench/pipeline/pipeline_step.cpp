// One C++ rank of the benchmark of pipelines; pipeline.py starts it and holds the Python side.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "lockstep/optimizer.h"
#include "lockstep/pipeline.h"
#include "lockstep/world.h"

namespace {

using Clock = std::chrono::steady_clock;

// Python's in pipeline.py.
constexpr std::int64_t kWidth = 512, kInner = 2048, kBatch = 64;
constexpr int kBlocks = 8, kMicroBatches = 8;

struct Block : torch::nn::Module {
  Block() {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::tanh(up(x))); }
  torch::nn::Linear up{kWidth, kInner}, down{kInner, kWidth};
};

at::Tensor loss_of(const lockstep::Tensors& outputs, const lockstep::Tensors& targets) {
  return torch::mse_loss(outputs[0], targets[0]);
}

// Prints "<name> <parameters of a stage> <milliseconds per step> <bubble>" on rank 0.
void measure(lockstep::World& world, double seconds, const std::string& name,
             lockstep::PipelineSchedule schedule) {
  std::vector<lockstep::PipelinePart> parts;
  for (int i = 0; i < kBlocks; ++i) {
    parts.push_back({"block" + std::to_string(i),
                     [] { return lockstep::model_part(std::make_shared<Block>()); }});
  }
  lockstep::Pipeline pipeline(
      world.group(), parts,
      {.micro_batches = kMicroBatches, .schedule = schedule, .loss = loss_of});
  lockstep::AdamW optimizer(lockstep::named_parameters(*pipeline.module()), {.lr = 1e-4});
  const at::Tensor x = torch::rand({kBatch, kWidth}), y = torch::rand({kBatch, kWidth});
  lockstep::PipelineTimes sum;
  const auto seconds_of = [&](int steps) {
    sum = {};
    const auto start = Clock::now();
    for (int i = 0; i < steps; ++i) {
      const auto times = pipeline.train_step({x}, {y}).times;
      sum.step += times.step;
      sum.forward += times.forward;
      sum.backward += times.backward;
      optimizer.step();
      pipeline.zero_grad();
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  constexpr int kTimes = 10;
  seconds_of(2);
  const at::Tensor count = torch::tensor(seconds * 2 / seconds_of(2) / kTimes, torch::kDouble);
  world.group().broadcast(count);
  const int steps = std::max(1, static_cast<int>(count.item<double>()));
  world.barrier();
  double best = std::numeric_limits<double>::infinity(), bubble = 1;
  for (int i = 0; i < kTimes; ++i) {
    best = std::min(best, seconds_of(steps));
    bubble = std::min(bubble, lockstep::measured_bubble(pipeline.gather_times(sum)));
  }
  std::int64_t size = 0;
  for (const auto& parameter : pipeline.module()->parameters()) size += parameter.numel();
  if (world.rank() == 0) {
    std::cout << name << ' ' << size << ' ' << 1e3 * best / steps << ' ' << bubble << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const double seconds = argc > 1 ? std::stod(argv[1]) : 1.0;
  at::set_num_threads(1);
  lockstep::World world = lockstep::init({.backend = argc > 2 ? argv[2] : "", .device = "cpu"});
  measure(world, seconds, "gpipe", lockstep::PipelineSchedule::gpipe);
  measure(world, seconds, "1f1b", lockstep::PipelineSchedule::one_forward_one_backward);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
