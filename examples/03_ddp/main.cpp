// Chapter 3: one process per device, on one machine or many.
#include <iostream>

#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/distributed_sampler.h"
#include "lockstep/spawn.h"
#include "lockstep/world.h"

void train() {
  lockstep::World world = lockstep::init();
  const torch::Device device = world.device();

  torch::manual_seed(0);
  const auto inputs = torch::rand({2048, 20}, device);
  const auto targets = torch::rand({2048, 1}, device);

  torch::nn::Linear model(20, 1);
  model->to(device);
  lockstep::DistributedDataParallel ddp(world, model);
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/1e-3);
  lockstep::DistributedSampler sampler(
      {.dataset_size = 2048, .world_size = world.world_size(), .rank = world.rank()});

  for (int epoch = 0; epoch < 10; ++epoch) {
    sampler.set_epoch(epoch);
    const auto order = torch::tensor(sampler.indices()).to(device);
    const auto batches = order.split(32);
    double total_loss = 0;
    for (const auto& batch : batches) {
      ddp.zero_grad();
      const auto output = ddp.forward(inputs.index_select(0, batch));
      const auto loss = torch::mse_loss(output, targets.index_select(0, batch));
      loss.backward();
      optimizer.step();
      total_loss += loss.item<double>();
    }
    std::cout << "[rank" << world.rank() << "] Epoch " << epoch
              << " | Batchsize: 32 | Steps: " << batches.size()
              << " | Loss: " << total_loss / batches.size() << std::endl;
  }
}

int main() {
  lockstep::spawn([](int) { train(); }, 2);
}
