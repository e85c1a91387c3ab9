// The job of PyTorch's DDP tutorial (multigpu_torchrun.py): a linear model on 2,048 random samples,
// and a snapshot from which it goes on by itself.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include <torch/torch.h>

#include "lockstep/environment.h"
#include "lockstep/error.h"
#include "lockstep/loader.h"
#include "lockstep/module_state.h"
#include "lockstep/record.h"
#include "lockstep/torch_file.h"
#include "lockstep/trainer.h"
#include "options.h"

namespace {

using lockstep::concat;
using lockstep::InvalidArgument;
using lockstep::PyValue;

constexpr std::int64_t kDatasetSize = 2048;

/// Puts a snapshot's weights into the model and returns how many epochs they have behind them: 0,
/// with the model as it was, when there is no snapshot.
std::int64_t load_snapshot(const std::string& path, torch::nn::Linear& model) {
  if (!std::filesystem::exists(path)) return 0;
  try {
    const PyValue snapshot = lockstep::load_pt(path);
    const std::int64_t epochs = snapshot.at("EPOCHS_RUN").to_int();
    if (epochs < 0) throw InvalidArgument(concat("EPOCHS_RUN is ", epochs));
    lockstep::load_module_state(*model, snapshot.at("MODEL_STATE").to_state());
    return epochs;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("'", path, "' is no snapshot to go on from: ", error.what(),
                                 "; move it away to begin anew"));
  }
}

/// What the tutorial prints and saves, at the ends of epochs.
class Tutorial : public lockstep::Callback {
 public:
  Tutorial(const Options& options, torch::nn::Linear model, std::int64_t first_epoch)
      : options_(options), model_(std::move(model)), first_epoch_(first_epoch) {}

  /// Of one batch of this rank.
  void add_loss(const torch::Tensor& loss) {
    total_loss_ = steps_ == 0 ? loss.detach().clone() : total_loss_.add_(loss.detach());
    ++steps_;
  }

  void on_start(std::int64_t) override {
    const auto place = lockstep::detect_environment(lockstep::Environment::of_process());
    if (place) place_ = *place;
    start_ = std::chrono::steady_clock::now();
    if (place_.rank == 0 && first_epoch_ > 0) {
      std::cout << "Resuming training from snapshot at Epoch " << first_epoch_ << std::endl;
    }
  }

  void on_step(const lockstep::StepReport&) override { ++all_steps_; }

  void on_epoch_end(std::int64_t epoch) override {
    const bool gpu = model_->weight.is_cuda();
    std::cout << concat(gpu ? "[GPU" : "[rank", gpu ? place_.local_rank : place_.rank, "] Epoch ",
                        epoch, " | Batchsize: ", options_.batch_size, " | Steps: ", steps_,
                        " | Loss: ", total_loss_.item<double>() / steps_, "\n")
              << std::flush;
    steps_ = 0;
    if (place_.rank != 0) return;
    epochs_run_ = epoch + 1;
    weights_ = lockstep::module_state(*model_);
    for (auto& [name, tensor] : weights_.tensors) tensor = tensor.detach().clone();
    if (epochs_run_ % options_.save_every == 0) save(/*last=*/false);
  }

  void on_end(const lockstep::TrainResult& result) override {
    if (place_.rank != 0) return;
    // A run that ends in mid-epoch leaves the weights of the last whole one, because the snapshot
    // can say no more than how many epochs there were.
    if (saved_ < epochs_run_) save(/*last=*/true);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
    const double samples = 1.0 * all_steps_ * options_.batch_size * place_.world_size;
    std::cout << "Trained " << result.epoch - first_epoch_ << " epochs on " << place_.world_size
              << " rank(s) in " << seconds.count()
              << " s: " << static_cast<std::int64_t>(all_steps_ / seconds.count()) << " steps/s, "
              << static_cast<std::int64_t>(samples / seconds.count()) << " samples/s" << std::endl;
  }

 private:
  // A full disk in mid-run is no reason to lose the run. At its end it is one to fail.
  void save(bool last) {
    try {
      lockstep::save_pt(options_.snapshot_path,
                        PyValue::dict({{"MODEL_STATE", weights_}, {"EPOCHS_RUN", epochs_run_}}));
      if (!options_.checkpoint_path.empty()) {
        lockstep::save_pt(options_.checkpoint_path, weights_);
      }
    } catch (const lockstep::SystemError& error) {
      if (last) throw;
      std::fprintf(stderr, "toy_trainer: %s; training goes on\n", error.what());
      return;
    }
    saved_ = epochs_run_;
    std::cout << "Epoch " << epochs_run_ - 1 << " | Training snapshot saved at "
              << options_.snapshot_path << std::endl;
  }

  const Options& options_;
  torch::nn::Linear model_;
  std::int64_t first_epoch_;
  lockstep::RankEnvironment place_;  // of this process among the ranks

  torch::Tensor total_loss_;
  std::int64_t steps_ = 0;  // of the epoch
  std::int64_t all_steps_ = 0;
  std::chrono::steady_clock::time_point start_;

  // On rank 0: the last whole epoch, and the last one that was saved.
  lockstep::State weights_;
  std::int64_t epochs_run_ = 0;
  std::int64_t saved_ = 0;
};

void check_ranks(const Options& options, const lockstep::RankEnvironment& launched) {
  if (options.ranks && *options.ranks != launched.world_size) {
    throw InvalidArgument(concat("--ranks is ", *options.ranks, ", but the launcher started ",
                                 launched.world_size, "; leave it out"));
  }
}

lockstep::TrainerOptions trainer_options(const Options& options, std::int64_t first_epoch,
                                         std::shared_ptr<lockstep::Callback> callback) {
  lockstep::TrainerOptions training;
  training.epochs = options.total_epochs;
  training.first_epoch = first_epoch;
  training.optimizer = lockstep::SGDOptions{.lr = 1e-3};
  training.snapshots.enabled = false;  // the tutorial's own file is the one
  training.on_preemption = lockstep::OnPreemption::return_early;
  training.progress = false;
  if (!options.track.empty()) {
    lockstep::choose_sinks(training.tracking, options.track);
    training.tracking.config = {{"batch_size", options.batch_size}};
    training.log_all_ranks = true;
    if (std::getenv("LOCKSTEP_RUN_DIR") == nullptr) training.snapshots.directory = "toy_run";
  }
  training.callbacks = {std::move(callback)};
  training.devices = options.ranks.value_or(1);
  return training;
}

int train(const Options& options) {
  const auto launched = lockstep::detect_environment(lockstep::Environment::of_process());
  if (launched) check_ranks(options, *launched);

  torch::manual_seed(0);  // the same data on every rank
  const torch::Tensor inputs = torch::rand({kDatasetSize, 20});
  const torch::Tensor targets = torch::rand({kDatasetSize, 1});
  lockstep::Loader data(lockstep::TensorDataset(inputs, targets),
                        {.batch_size = options.batch_size, .shuffle = true});

  torch::nn::Linear model(20, 1);
  // The others begin with the weights and the epoch of rank 0.
  const bool reads = !launched || launched->rank == 0;
  const std::int64_t first_epoch = reads ? load_snapshot(options.snapshot_path, model) : 0;

  auto tutorial = std::make_shared<Tutorial>(options, model, first_epoch);
  lockstep::Trainer trainer(trainer_options(options, first_epoch, tutorial));
  const lockstep::TrainResult result =
      trainer.fit(model, data, [&tutorial](auto& model, const auto& batch) {
        const auto& [input, target] = batch;
        const torch::Tensor loss = torch::mse_loss(model(input), target);
        tutorial->add_loss(loss);
        return loss;
      });
  return result.exit_code();
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.help) {
    std::cout << kHelp;
    return 0;
  }
  return train(options);
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::record(argc, argv, run);
}
