// Chapter 4: a run that can be stopped, and goes on from its snapshot.
#include <filesystem>
#include <iostream>
#include <string>

#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/loader.h"
#include "lockstep/module_state.h"
#include "lockstep/optimizer.h"
#include "lockstep/spawn.h"
#include "lockstep/torch_file.h"
#include "lockstep/world.h"

using TrainData = lockstep::Loader<lockstep::TensorDataset<2>>;

class Trainer {
 public:
  Trainer(lockstep::World& world, torch::nn::Linear model, TrainData& train_data,
          lockstep::Optimizer& optimizer, int save_every)
      : world_(world),
        model_(model),
        train_data_(train_data),
        optimizer_(optimizer),
        save_every_(save_every),
        epochs_run_(load_snapshot()),
        ddp_(world, model) {}

  void train(int max_epochs) {
    for (int epoch = epochs_run_; epoch < max_epochs; ++epoch) {
      run_epoch(epoch);
      if (world_.rank() == 0 && (epoch + 1) % save_every_ == 0) save_snapshot(epoch);
    }
  }

 private:
  int load_snapshot() {
    if (!std::filesystem::exists("snapshot.pt")) return 0;
    const auto snapshot = lockstep::load_pt("snapshot.pt");
    lockstep::load_module_state(*model_, snapshot.at("MODEL_STATE").to_state());
    const int epochs_run = static_cast<int>(snapshot.at("EPOCHS_RUN").to_int());
    std::cout << "Resuming training from snapshot at Epoch " << epochs_run << std::endl;
    return epochs_run;
  }

  void save_snapshot(int epoch) {
    lockstep::save_pt("snapshot.pt",
                      lockstep::PyValue::dict({{"MODEL_STATE", lockstep::module_state(*model_)},
                                               {"EPOCHS_RUN", epoch + 1}}));
    std::cout << "Epoch " << epoch << " | Training snapshot saved at snapshot.pt" << std::endl;
  }

  torch::Tensor run_batch(const torch::Tensor& source, const torch::Tensor& targets) {
    ddp_.zero_grad();
    const auto output = ddp_.forward(source);
    const auto loss = torch::mse_loss(output, targets);
    loss.backward();
    optimizer_.step();
    return loss;
  }

  void run_epoch(int epoch) {
    int steps = 0;
    double total_loss = 0;
    for (const auto& [source, targets] : train_data_.epoch(epoch)) {
      total_loss += run_batch(source, targets).item<double>();
      ++steps;
    }
    std::cout << "[rank" << world_.rank() << "] Epoch " << epoch
              << " | Batchsize: 32 | Steps: " << steps << " | Loss: " << total_loss / steps
              << std::endl;
  }

  lockstep::World& world_;
  torch::nn::Linear model_;
  TrainData& train_data_;
  lockstep::Optimizer& optimizer_;
  int save_every_;
  int epochs_run_;
  lockstep::DistributedDataParallel<torch::nn::LinearImpl> ddp_;
};

void train(int total_epochs, int save_every) {
  lockstep::World world = lockstep::init();
  const torch::Device device = world.device();

  torch::manual_seed(0);
  const auto inputs = torch::rand({2048, 20});
  const auto targets = torch::rand({2048, 1});

  torch::nn::Linear model(20, 1);
  model->to(device);
  lockstep::SGD optimizer(lockstep::named_parameters(*model), {.lr = 1e-3});
  TrainData train_data(lockstep::TensorDataset(inputs, targets),
                       {.batch_size = 32, .shuffle = true, .device = device});
  train_data.deal({.slots = world.world_size(), .mine = {world.rank()}});

  Trainer trainer(world, model, train_data, optimizer, save_every);
  trainer.train(total_epochs);
}

int main(int argc, char** argv) {
  const int total_epochs = argc > 1 ? std::stoi(argv[1]) : 10;
  const int save_every = argc > 2 ? std::stoi(argv[2]) : 5;
  lockstep::spawn([&](int) { train(total_epochs, save_every); }, 2);
}
