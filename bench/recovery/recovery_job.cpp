// A small training job that notes when each step was committed, for recovery.py, which kills one of
// its ranks. Its peer is recovery_peer.py.
//
// recovery_job STEPS WIDTH FOLDER [VERIFY_EVERY]
//
// With a width of 0 the model is a small GPT.
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include <torch/torch.h>

#include "lockstep/gpt2.h"
#include "lockstep/loader.h"
#include "lockstep/record.h"
#include "lockstep/trainer.h"

namespace {

struct Samples {
  std::int64_t width;
  std::int64_t size() const { return 4096; }
  std::pair<torch::Tensor, torch::Tensor> get(std::int64_t index) const {
    const auto x = torch::arange(width, torch::kFloat) * 0.001 + 0.01 * static_cast<double>(index);
    return {torch::sin(x), torch::cos(x.slice(0, 0, 1))};
  }
};

struct Sentences {
  static constexpr std::int64_t kLength = 64, kVocabulary = 2048;
  std::int64_t size() const { return 4096; }
  std::pair<torch::Tensor, torch::Tensor> get(std::int64_t index) const {
    const auto ids = (torch::arange(kLength + 1) * (index + 3)).remainder(kVocabulary);
    return {ids.slice(0, 0, kLength), ids.slice(0, 1, kLength + 1)};
  }
};

double now() {
  // Comparable with Python's time.monotonic() on the same machine.
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Notes : public lockstep::Callback {
 public:
  explicit Notes(std::string folder) : folder_(std::move(folder)) {}
  // Not before: until it takes a place, a spare has no rank.
  void on_start(std::int64_t) override {
    const std::string rank = std::getenv("RANK");
    std::ofstream(folder_ + "/pid_" + rank) << ::getpid() << "\n";
    file_.open(folder_ + "/steps_" + rank, std::ios::app);
  }
  void on_step(const lockstep::StepReport& report) override {
    char line[64];
    std::snprintf(line, sizeof(line), "%lld %.6f\n", static_cast<long long>(report.step), now());
    file_ << line << std::flush;
  }

 private:
  std::string folder_;
  std::ofstream file_;
};

void train_mlp(lockstep::Trainer& trainer, std::int64_t width) {
  torch::nn::Sequential model(torch::nn::Linear(width, width), torch::nn::ReLU(),
                              torch::nn::Linear(width, 1));
  lockstep::Loader data(Samples{width}, {.batch_size = 16, .shuffle = true});
  trainer.fit(model, data, [](auto& net, const auto& batch) {
    return torch::mse_loss(net(batch.first), batch.second);
  });
}

void train_gpt(lockstep::Trainer& trainer) {
  lockstep::Gpt2Config config = lockstep::Gpt2Config::named("tiny");
  config.vocab_size = Sentences::kVocabulary;
  config.n_positions = Sentences::kLength;
  config.n_embd = 192;
  config.n_layer = 4;
  config.n_head = 6;
  lockstep::Gpt2 model(config);
  lockstep::Loader data(Sentences{}, {.batch_size = 4, .shuffle = true});
  trainer.fit(model, data, [](auto& gpt, const auto& batch) {
    const lockstep::Gpt2Loss loss = gpt(batch.first, batch.second);
    return lockstep::LossSum{.sum = loss.sum, .count = static_cast<double>(loss.count)};
  });
}

int run(int count, char** arguments) {
  if (count != 4 && count != 5) {
    std::fprintf(stderr, "recovery_job STEPS WIDTH FOLDER [VERIFY_EVERY]\n");
    return 2;
  }
  const std::int64_t steps = std::atoll(arguments[1]), width = std::atoll(arguments[2]);
  torch::set_num_threads(1);
  torch::manual_seed(0);
  lockstep::TrainerOptions options{.steps = steps,
                                   .optimizer = lockstep::AdamWOptions{.lr = 1e-3},
                                   .snapshots = {.enabled = false},
                                   .log_every = 0,
                                   .progress = false,
                                   .callbacks = {std::make_shared<Notes>(arguments[3])}};
  if (count == 5) options.verify_every = std::atoll(arguments[4]);
  lockstep::Trainer trainer(options);
  if (width == 0) {
    train_gpt(trainer);
  } else {
    train_mlp(trainer, width);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  return lockstep::record([&] { return run(count, arguments); });
}
