// The Trainer trains a GPT-2 on random tokens on one GPU, as train_llm does: batches that a loader
// brings, a loss that is looked at, gradients that are clipped, in bfloat16 under autocast.
//
//     gpt2_trainer MODEL BATCH TOKENS STEPS graph|launch
//
// Prints one line of JSON: the times of the last STEPS steps in milliseconds, from the end of one
// to the end of the next, and the most memory that was reserved.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "lockstep/gpt2.h"
#include "lockstep/loader.h"
#include "lockstep/token_dataset.h"
#include "lockstep/trainer.h"

namespace {

using Clock = std::chrono::steady_clock;

struct RandomTokens {
  std::int64_t count = 0, tokens = 0;
  std::int64_t size() const { return count; }
  lockstep::TokenBlock get(std::int64_t index) const {
    const at::Tensor all = (torch::arange(tokens + 1) * 7919 + index * 104729) % 50257;
    return {.input = all.narrow(0, 0, tokens).clone(), .labels = all.narrow(0, 1, tokens).clone()};
  }
};

struct Times : lockstep::Callback {
  void on_step(const lockstep::StepReport&) override { ends.push_back(Clock::now()); }
  std::vector<Clock::time_point> ends;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc == 6 ? argv[5] : "";
  if (how != "graph" && how != "launch") {
    std::fprintf(stderr, "usage: gpt2_trainer MODEL BATCH TOKENS STEPS graph|launch\n");
    return 2;
  }
  constexpr int kBefore = 8;
  const std::int64_t batch = std::atol(argv[2]), tokens = std::atol(argv[3]);
  const int steps = std::atoi(argv[4]) + kBefore;

  lockstep::Gpt2 model(lockstep::Gpt2Config::named(argv[1]), {.pad_vocab_to_multiple_of = 128});
  model->set_dropout(0);
  lockstep::Loader data(RandomTokens{.count = batch * steps, .tokens = tokens},
                        {.batch_size = batch,
                         .num_workers = 2,
                         .pin_memory = true,
                         .device = c10::Device(c10::kCUDA, 0)});
  const auto times = std::make_shared<Times>();
  lockstep::TrainerOptions options{.steps = steps,
                                   .optimizer = lockstep::AdamWOptions{.lr = 3e-4},
                                   .clip_grad_norm = 1,
                                   .precision = lockstep::Precision::bf16_autocast,
                                   .cuda_graph = how == "graph"};
  options.log_every = 0;
  options.progress = false;
  options.callbacks = {times};
  lockstep::fit(
      model, data,
      [](auto& gpt2, const lockstep::TokenBlock& block) {
        const lockstep::Gpt2Loss loss = gpt2(block.input, block.labels);
        return lockstep::LossSum{.sum = loss.sum, .count = loss.count, .counted = loss.counted};
      },
      options);
  nlohmann::json found = {{"ms", nlohmann::json::array()}};
  for (std::size_t i = kBefore; i < times->ends.size(); ++i) {
    const std::chrono::duration<double, std::milli> took = times->ends[i] - times->ends[i - 1];
    found["ms"].push_back(took.count());
  }
  found["bytes"] = c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].peak;
  std::printf("%s\n", found.dump().c_str());
  return 0;
}
