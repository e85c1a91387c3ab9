// One GPU trains a GPT-2 on random tokens: forward, backward and AdamW, in bfloat16 under autocast.
//
//     gpt2_step MODEL BATCH TOKENS STEPS fused|aten graph|launch
//
// Prints one line of JSON: the steps' times in milliseconds, as the device saw them, the last loss
// and the most memory that was allocated.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/torch.h>

#include "lockstep/autocast.h"
#include "lockstep/gpt2.h"
#include "lockstep/optimizer.h"
#include "train/graphed_step.h"

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: gpt2_step MODEL BATCH TOKENS STEPS fused|aten graph|launch\n");
    return 2;
  }
  const std::int64_t batch = std::atol(argv[2]), tokens = std::atol(argv[3]);
  const int steps = std::atoi(argv[4]);
  const bool fused = std::string(argv[5]) == "fused", graph = std::string(argv[6]) == "graph";

  lockstep::Gpt2 model(lockstep::Gpt2Config::named(argv[1]),
                       {.pad_vocab_to_multiple_of = 128, .fused = fused});
  model->set_dropout(0);
  model->to(torch::kCUDA);
  lockstep::AdamW optimizer(lockstep::decay_groups(*model, 0.1), {.lr = 3e-4});
  const at::Tensor ids = torch::randint(50257, {batch, tokens}, torch::kLong).cuda();
  const at::Tensor labels = ids.roll(-1, 1);
  at::Tensor loss;
  const std::function<void()> work = [&] {
    optimizer.zero_grad();
    lockstep::Gpt2Loss found;
    {
      const lockstep::Autocast autocast({.device_type = at::kCUDA, .dtype = at::kBFloat16});
      found = model->forward(ids, labels);
    }
    at::Tensor mean = found.sum / static_cast<double>(batch * tokens);
    mean.backward();
    optimizer.step();
    loss = mean.detach();
  };
  lockstep::GraphedStep graphed(work);
  const auto step = [&] { graph ? graphed.run() : work(); };
  for (int i = 0; i < 8; ++i) step();

  // All steps are launched before the first is waited for, as a training loop does.
  std::vector<at::cuda::CUDAEvent> events;
  for (int i = 0; i <= steps; ++i) events.emplace_back(cudaEventDefault);
  events[0].record();
  for (int i = 0; i < steps; ++i) {
    step();
    events[i + 1].record();
  }
  events.back().synchronize();
  std::printf("{\"ms\": [");
  for (int i = 0; i < steps; ++i) {
    std::printf("%s%.4f", i > 0 ? ", " : "", events[i].elapsed_time(events[i + 1]));
  }
  const auto memory = c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].peak;
  std::printf("], \"loss\": %.5f, \"bytes\": %lld}\n", loss.item<double>(),
              static_cast<long long>(memory));
  return 0;
}
