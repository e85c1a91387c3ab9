// One C++ rank of bench/train_llm_cpu; train_llm_cpu.py starts it and holds the Python side.
//
//   train_llm_bench WIDTH LAYERS HEADS VOCABULARY TOKENS BATCH DROPOUT WARM_UP BLOCKS STEPS
//
// Trains a GPT-2 with the Trainer, as a program would, and prints on rank 0
// "<parameters> <seconds of the best block> <processor seconds a block>".
#include <algorithm>
#include <chrono>
#include <ctime>
#include <iostream>
#include <limits>
#include <string>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include "lockstep/cpu_memory.h"
#include "lockstep/gpt2.h"
#include "lockstep/loader.h"
#include "lockstep/trainer.h"
#include "lockstep/world.h"

namespace {

using Clock = std::chrono::steady_clock;

/// Times blocks of steps. The loss function calls it once a step.
class BlockClock {
 public:
  BlockClock(std::int64_t warm_up, std::int64_t blocks, std::int64_t steps)
      : warm_up_(warm_up), blocks_(blocks), steps_(steps) {}

  void tick() {
    const std::int64_t measured = seen_++ - warm_up_;
    if (measured < 0 || measured % steps_ != 0) return;
    const auto now = Clock::now();
    if (measured == 0) {
      processor_begin_ = std::clock();
    } else {
      best_ = std::min(best_, std::chrono::duration<double>(now - block_begin_).count());
      processor_ = static_cast<double>(std::clock() - processor_begin_) / CLOCKS_PER_SEC;
    }
    block_begin_ = now;
  }
  /// The last one ends the measurement and is not a part of it.
  std::int64_t all_steps() const { return warm_up_ + blocks_ * steps_ + 1; }
  double best() const { return best_; }
  double processor() const { return processor_ / static_cast<double>(blocks_); }

 private:
  std::int64_t warm_up_, blocks_, steps_;
  std::int64_t seen_ = 0;
  Clock::time_point block_begin_;
  std::clock_t processor_begin_ = 0;
  double best_ = std::numeric_limits<double>::infinity();
  double processor_ = 0;
};

void run(const std::vector<std::string>& words) {
  const auto number = [&](std::size_t i) { return std::stoll(words.at(i)); };
  const double dropout = std::stod(words.at(6));
  const lockstep::Gpt2Config config{.vocab_size = number(3),
                                    .n_positions = number(4),
                                    .n_embd = number(0),
                                    .n_layer = number(1),
                                    .n_head = number(2),
                                    .embd_pdrop = dropout,
                                    .attn_pdrop = dropout,
                                    .resid_pdrop = dropout};
  const std::int64_t tokens = number(4), batch = number(5);
  BlockClock clock(number(7), number(8), number(9));

  lockstep::reuse_cpu_memory();
  at::set_num_threads(1);
  lockstep::World world = lockstep::init({.device = "cpu"});
  torch::manual_seed(0);
  lockstep::TensorDataset dataset(
      torch::randint(config.vocab_size, {256, tokens + 1}, torch::kLong));
  lockstep::Loader data(dataset, {.batch_size = batch, .shuffle = true});
  lockstep::Gpt2 model(config);
  lockstep::Trainer trainer(world, {.steps = clock.all_steps(),
                                    .optimizer = lockstep::AdamWOptions{.lr = 3e-4},
                                    .progress = false});
  trainer.fit(model, data, [&](auto& model, const at::Tensor& block) {
    clock.tick();
    const lockstep::Gpt2Loss loss =
        model(block.narrow(1, 0, tokens), block.narrow(1, 1, tokens).contiguous());
    return lockstep::LossSum{.sum = loss.sum, .count = loss.count};
  });
  if (world.rank() == 0) {
    std::cout << config.parameter_count() << ' ' << clock.best() << ' ' << clock.processor()
              << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  run({argv + 1, argv + argc});
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
