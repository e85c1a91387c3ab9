// Chapter 5: the same job with the library's Trainer.
#include <torch/torch.h>

#include "lockstep/loader.h"
#include "lockstep/trainer.h"

int main() {
  torch::manual_seed(0);
  const auto inputs = torch::rand({2048, 20});
  const auto targets = torch::rand({2048, 1});

  torch::nn::Linear model(20, 1);
  lockstep::Loader train_data(lockstep::TensorDataset(inputs, targets),
                              {.batch_size = 32, .shuffle = true});

  lockstep::Trainer trainer({.epochs = 10,
                             .optimizer = lockstep::SGDOptions{.lr = 1e-3},
                             .snapshots = {.directory = "runs/05_fit", .every = {.epochs = 5}},
                             .on_preemption = lockstep::OnPreemption::return_early,
                             .devices = 2});
  const auto result = trainer.fit(model, train_data, [](auto& model, const auto& batch) {
    const auto& [source, targets] = batch;
    return torch::mse_loss(model(source), targets);
  });
  return result.exit_code();
}
