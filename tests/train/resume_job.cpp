// A training job that uses everything that could make a resumed run differ from an undisturbed one.
// resume_test.py runs it, kills it, runs it again and compares what it leaves behind.
#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/loader.h"
#include "lockstep/record.h"
#include "lockstep/trainer.h"

namespace {

std::string setting(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}
std::int64_t number(const char* name, std::int64_t otherwise) {
  return std::stoll(setting(name, std::to_string(otherwise)));
}

/// Samples with noise of their own, which must not depend on who reads them.
struct Noisy {
  std::int64_t size() const { return 230; }
  std::pair<torch::Tensor, torch::Tensor> get(std::int64_t index, lockstep::Random& random) const {
    auto x = torch::empty({6});
    for (std::int64_t i = 0; i < 6; ++i) x[i] = random.normal() + 0.01 * index;
    return {x, torch::sin(x.sum(0, /*keepdim=*/true))};
  }
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second(torch::dropout(torch::relu(norm(first(x))), 0.3, is_training()));
  }
  torch::nn::Linear first{6, 24};
  torch::nn::BatchNorm1d norm{24};
  torch::nn::Linear second{24, 1};
};
TORCH_MODULE(Net);

/// Dies without a chance to say goodbye.
class Killer : public lockstep::Callback {
 public:
  void on_step(const lockstep::StepReport& report) override {
    if (report.step == number("KILL_AT_STEP", -1)) die();
  }
  void on_save(std::int64_t step) override {
    if (step == number("KILL_IN_SAVE", -1)) die();
  }
  void on_epoch_end(std::int64_t epoch) override {
    if (epoch == number("KILL_AT_EPOCH", -1)) die();
  }

 private:
  static void die() {
    if (number("RANK", 0) == number("KILL_RANK", 0)) ::kill(::getpid(), SIGKILL);
  }
};

int run() {
  torch::set_num_threads(1);
  torch::manual_seed(number("RANK", 0));  // rank 0's weights are the ones that count
  Net net;
  const auto threads = static_cast<int>(number("LOADER_THREADS", 2));
  lockstep::Loader data(Noisy{}, {.batch_size = 5, .shuffle = true, .num_workers = threads});
  lockstep::Loader held_out(Noisy{}, {.batch_size = 7, .dealing = lockstep::Dealing::kExact});
  const auto squared_error = [](auto& model, const auto& batch) {
    return torch::mse_loss(model(batch.first), batch.second);
  };
  // Uneven on purpose: how much a batch counts depends on what is in it.
  const auto masked_error = [](auto& model, const auto& batch) {
    const auto mask = (batch.second > -0.5).to(torch::kFloat);
    const auto error = (model(batch.first).to(torch::kFloat) - batch.second).square() * mask;
    return lockstep::LossSum{.sum = error.sum(), .count = mask.sum().template item<double>() + 1};
  };
  lockstep::TrainerOptions options{
      .steps = number("STEPS", 30),
      .optimizer = lockstep::AdamWOptions{.lr = 0.01},
      .schedule = lockstep::CosineSchedule{.warmup_steps = 5, .total_steps = 40},
      .accumulate = 2,
      .clip_grad_norm = 1.0,
      .precision = lockstep::Precision::bf16_autocast,
      .ema_decay = 0.9,
      .seed = 7,
      .snapshots = {.directory = setting("DIRECTORY", "run"),
                    .every = {.steps = number("SAVE_EVERY", 4)},
                    .keep_last = 0,
                    .keep_best = true,
                    .background = number("BACKGROUND", 1) != 0},
      .log_every = 1,
      .progress = false,
      .callbacks = {std::make_shared<Killer>()}};
  lockstep::Trainer trainer(std::move(options));
  const lockstep::Evaluation evaluation{held_out, squared_error};
  if (number("MASKED", 0) != 0) {
    trainer.fit(net, data, masked_error, evaluation);
  } else {
    trainer.fit(net, data, squared_error, evaluation);
  }
  return 0;
}

}  // namespace

int main() {
  return lockstep::record(run);
}
