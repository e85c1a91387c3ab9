#include <cstdio>

#include <torch/torch.h>

#include <lockstep/ddp.h>
#include <lockstep/distributed_sampler.h>
#include <lockstep/record.h>
#include <lockstep/spawn.h>

// Two ranks fit y = 3x; the loss must fall.
void train(int rank) {
  lockstep::World world = lockstep::init({.device = "cpu"});
  torch::nn::Linear model(1, 1);
  lockstep::DistributedDataParallel ddp(world, model);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  lockstep::DistributedSampler sampler(
      {.dataset_size = 64, .world_size = world.world_size(), .rank = world.rank()});

  float first = 0, last = 0;
  for (int epoch = 0; epoch < 20; ++epoch) {
    sampler.set_epoch(epoch);
    const auto x =
        torch::tensor(sampler.indices(), torch::kLong).to(torch::kFloat).div(64).view({-1, 1});
    const auto loss = torch::mse_loss(ddp(x), 3 * x);
    ddp.zero_grad();
    loss.backward();
    optimizer.step();
    last = loss.item<float>();
    if (epoch == 0) first = last;
  }
  if (!(last < first)) throw lockstep::Error("the loss did not fall");
  if (rank == 0) std::printf("loss %g -> %g\n", first, last);
}

int main(int argc, char** argv) {
  return lockstep::record(argc, argv, [](int, char**) {
    lockstep::spawn(train, 2);
    std::puts("lockstep works");
    return 0;
  });
}
