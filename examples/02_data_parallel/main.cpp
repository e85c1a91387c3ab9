// Chapter 2: one process, all devices of this machine.
#include <iostream>

#include <torch/torch.h>

#include "lockstep/data_parallel.h"
#include "lockstep/sampler.h"

void train() {
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);

  torch::manual_seed(0);
  const auto inputs = torch::rand({2048, 20}, device);
  const auto targets = torch::rand({2048, 1}, device);

  torch::nn::Linear model(20, 1);
  model->to(device);
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/1e-3);
  lockstep::RandomSampler sampler({.dataset_size = 2048});

  for (int epoch = 0; epoch < 10; ++epoch) {
    sampler.set_epoch(epoch);
    const auto order = torch::tensor(sampler.indices()).to(device);
    const auto batches = order.split(32);
    double total_loss = 0;
    for (const auto& batch : batches) {
      optimizer.zero_grad();
      const auto output = lockstep::data_parallel(model, inputs.index_select(0, batch));
      const auto loss = torch::mse_loss(output, targets.index_select(0, batch));
      loss.backward();
      optimizer.step();
      total_loss += loss.item<double>();
    }
    std::cout << "Epoch " << epoch << " | Batchsize: 32 | Steps: " << batches.size()
              << " | Loss: " << total_loss / batches.size() << std::endl;
  }
}

int main() {
  train();
}
