// Chapter 6: a loop by hand whose ranks may be killed.
#include <csignal>
#include <iostream>
#include <string>

#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/loader.h"
#include "lockstep/optimizer.h"
#include "lockstep/record.h"
#include "lockstep/recoverable.h"
#include "lockstep/world.h"

void train(std::int64_t die_at) {
  lockstep::World world = lockstep::init();
  const bool replaces_another = world.joins();
  const torch::Device device = world.device();

  torch::manual_seed(0);
  const auto inputs = torch::rand({2048, 20});
  const auto targets = torch::rand({2048, 1});

  torch::nn::Linear model(20, 1);
  model->to(device);
  lockstep::SGD optimizer(lockstep::named_parameters(*model), {.lr = 1e-3, .momentum = 0.9});
  lockstep::Loader train_data(lockstep::TensorDataset(inputs, targets),
                              {.batch_size = 32, .shuffle = true, .device = device});
  train_data.deal({.slots = world.world_size(), .mine = {world.rank()}});
  const std::int64_t steps_per_epoch = train_data.steps_per_epoch().value();
  double total_loss = 0;

  lockstep::recoverable(world,
                        {.module = model.ptr(),
                         .optimizer = optimizer,
                         .others = {{"total_loss", lockstep::recoverable_value(total_loss)}},
                         .steps = 10 * steps_per_epoch},
                        [&](lockstep::World& world) {
                          return [&, ddp = lockstep::DistributedDataParallel(world, model)](
                                     lockstep::RecoverableStep& step) mutable {
                            const std::int64_t epoch = step.number() / steps_per_epoch;
                            const std::int64_t step_in_epoch = step.number() % steps_per_epoch;
                            train_data.begin_epoch(epoch, step_in_epoch);
                            const auto [source, target] = train_data.next().value().batch.value();

                            ddp.zero_grad();
                            const auto loss = torch::mse_loss(ddp.forward(source), target);
                            if (step.number() == die_at && world.rank() == 1 && !replaces_another)
                              raise(SIGKILL);
                            loss.backward();
                            const auto mean_loss = loss.detach().clone();
                            world.group().all_reduce(mean_loss, {.op = lockstep::ReduceOp::avg});

                            step.commit([&] {
                              optimizer.step();
                              if (step_in_epoch == 0) total_loss = 0;
                              total_loss += mean_loss.item<double>();
                            });
                            if (world.rank() == 0 && step_in_epoch == steps_per_epoch - 1) {
                              std::cout << "Epoch " << epoch
                                        << " | Batchsize: 32 | Steps: " << steps_per_epoch
                                        << " | Loss: " << total_loss / steps_per_epoch << std::endl;
                            }
                          };
                        });
  if (world.rank() == 0) {
    std::cout.precision(17);
    std::cout << "The weights add up to " << model->weight.sum().item<double>() << std::endl;
  }
}

int main(int argc, char** argv) {
  return lockstep::record([&] {
    train(argc > 1 ? std::stoll(argv[1]) : -1);
    return 0;
  });
}
