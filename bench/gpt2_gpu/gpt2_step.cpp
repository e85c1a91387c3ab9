// One GPU trains a GPT-2 on random tokens: forward, backward and AdamW, in bfloat16 under autocast.
//
//     gpt2_step MODEL BATCH TOKENS STEPS fused|aten graph|launch [in_backward] [checkpoint]
//               [shard] [profile]
//
// Prints one line of JSON: the steps' times in milliseconds, as the device saw them, their losses
// and the most memory that was reserved. With `in_backward` weights are updated while backward
// goes on below them, not in a step after it; with `checkpoint` activations are computed again in
// backward; with `shard` it is stage 1 of ShardedDataParallel on one rank of NCCL; with `profile`
// also each kernel's name, calls and milliseconds in a step, and for how long none ran.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "lockstep/autocast.h"
#include "lockstep/gpt2.h"
#include "lockstep/graphed_step.h"
#include "lockstep/optimizer.h"
#include "lockstep/sharded.h"
#include "lockstep/world.h"
#include "optim/step_in_backward.h"

namespace {

struct Profile {
  nlohmann::json kernels = nlohmann::json::array();  // name, calls and milliseconds, of a step
  double idle = 0;                                   // milliseconds of a step in which none ran
};

// Several steps in a row, so that the device is as hot as it is in training.
Profile profile_of(const std::function<void()>& step) {
  constexpr int kSteps = 5;
  namespace profiler = torch::autograd::profiler;
  namespace settings = torch::profiler::impl;
  const settings::ProfilerConfig config(settings::ProfilerState::KINETO);
  const std::set<settings::ActivityType> activities = {settings::ActivityType::CUDA};
  for (int i = 0; i < kSteps; ++i) step();
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  for (int i = 0; i < kSteps; ++i) step();
  torch::cuda::synchronize();
  const auto result = profiler::disableProfiler();
  std::map<std::string, std::pair<int, double>> kernels;
  std::vector<std::pair<double, double>> times;  // begin and end
  for (const profiler::KinetoEvent& event : result->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    const double ms = static_cast<double>(event.durationNs()) / 1e6;
    const double begin = static_cast<double>(event.startNs()) / 1e6;
    auto& [calls, all] = kernels[event.name()];
    ++calls;
    all += ms;
    times.emplace_back(begin, begin + ms);
  }
  Profile profile;
  for (const auto& [name, found] : kernels) {
    profile.kernels.push_back({name, found.first / kSteps, found.second / kSteps});
  }
  std::sort(times.begin(), times.end());
  double until = times.empty() ? 0 : times.front().first;
  for (const auto& [begin, end] : times) {
    profile.idle += std::max(0.0, begin - until) / kSteps;
    until = std::max(until, end);
  }
  return profile;
}

}  // namespace

int main(int argc, char** argv) {
  const std::set<std::string> words(argv + std::min(argc, 5), argv + argc);
  const std::set<std::string> known = {"fused",       "aten",       "graph", "launch",
                                       "in_backward", "checkpoint", "shard", "profile"};
  if (argc < 7 || !std::ranges::includes(known, words)) {
    std::fprintf(stderr,
                 "usage: gpt2_step MODEL BATCH TOKENS STEPS fused|aten graph|launch "
                 "[in_backward] [checkpoint] [shard] [profile]\n");
    return 2;
  }
  const std::int64_t batch = std::atol(argv[2]), tokens = std::atol(argv[3]);
  const int steps = std::atoi(argv[4]);
  const bool graph = words.contains("graph");

  lockstep::Gpt2 model(lockstep::Gpt2Config::named(argv[1]),
                       {.activation_checkpointing = words.contains("checkpoint"),
                        .pad_vocab_to_multiple_of = 128,
                        .fused = words.contains("fused")});
  model->set_dropout(0);
  model->to(torch::kCUDA);
  std::optional<lockstep::World> world;
  std::optional<lockstep::ShardedDataParallel<lockstep::Gpt2Impl>> sharded;
  if (words.contains("shard")) {
    world.emplace(lockstep::init());
    sharded.emplace(
        *world, model,
        lockstep::ShardedOptions{.stage = lockstep::ShardStage::optimizer, .units = {"h.*"}});
  }
  lockstep::AdamW optimizer(
      sharded ? sharded->decay_groups(0.1) : lockstep::decay_groups(*model, 0.1), {.lr = 3e-4});
  std::optional<lockstep::StepInBackward> in_backward;
  if (words.contains("in_backward")) in_backward.emplace(optimizer);
  const at::Tensor ids = torch::randint(50257, {batch, tokens}, torch::kLong).cuda();
  const at::Tensor labels = ids.roll(-1, 1);
  at::Tensor loss;
  const std::function<void()> work = [&] {
    sharded ? sharded->zero_grad() : optimizer.zero_grad();
    lockstep::Gpt2Loss found;
    {
      const lockstep::Autocast autocast({.device_type = at::kCUDA, .dtype = at::kBFloat16});
      found = sharded ? sharded->forward(ids, labels) : model->forward(ids, labels);
    }
    at::Tensor mean = found.sum / static_cast<double>(batch * tokens);
    if (in_backward) {
      in_backward->backward(mean);
    } else {
      mean.backward();
      optimizer.step();
    }
    loss = mean.detach();
  };
  lockstep::GraphedStep graphed(work);
  const std::function<void()> step = [&] { graph ? graphed.run() : work(); };
  for (int i = 0; i < 8; ++i) step();

  // All steps are launched before the first is waited for, as a training loop does.
  const at::Tensor losses = torch::empty({steps}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  std::vector<at::cuda::CUDAEvent> events;
  for (int i = 0; i <= steps; ++i) events.emplace_back(cudaEventDefault);
  events[0].record();
  for (int i = 0; i < steps; ++i) {
    step();
    losses[i].copy_(loss);
    events[i + 1].record();
  }
  events.back().synchronize();
  nlohmann::json found = {{"ms", nlohmann::json::array()}, {"losses", nlohmann::json::array()}};
  const at::Tensor on_host = losses.cpu();
  for (int i = 0; i < steps; ++i) {
    found["ms"].push_back(events[i].elapsed_time(events[i + 1]));
    found["losses"].push_back(on_host[i].item<float>());
  }
  found["bytes"] = c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].peak;
  if (words.contains("profile")) {
    const Profile profile = profile_of(step);
    found["kernels"] = profile.kernels;
    found["idle"] = profile.idle;
  }
  std::printf("%s\n", found.dump().c_str());
  return 0;
}
