// A parameter server: it has the weights, and trainers that never wait for each other.
#include <iostream>
#include <mutex>
#include <string>

#include <torch/torch.h>

#include "lockstep/record.h"
#include "lockstep/rpc.h"
#include "lockstep/world.h"

namespace rpc = lockstep::rpc;

// What is to be learned: the product of two numbers.
torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::Tanh(),
                               torch::nn::Linear(32, 1));
}

torch::Tensor loss_of(torch::nn::Sequential& model, std::int64_t samples) {
  const auto inputs = torch::rand({samples, 2}) * 2 - 1;
  return torch::mse_loss(model->forward(inputs), inputs.prod(1, /*keepdim=*/true));
}

class ParameterServer {
 public:
  torch::Tensor pull() {
    const std::lock_guard lock(mutex_);
    return torch::nn::utils::parameters_to_vector(model_->parameters());
  }

  // Gradients come in any order, and were computed with weights that others have changed since.
  std::int64_t push(const torch::Tensor& gradient) {
    const std::lock_guard lock(mutex_);
    std::int64_t offset = 0;
    for (auto& parameter : model_->parameters()) {
      const std::int64_t count = parameter.numel();
      parameter.mutable_grad() = gradient.slice(0, offset, offset + count).view_as(parameter);
      offset += count;
    }
    optimizer_.step();
    return ++pushes_;
  }

  double loss() {
    const torch::NoGradGuard no_grad;
    const std::lock_guard lock(mutex_);
    return loss_of(model_, 4096).item<double>();
  }

 private:
  std::mutex mutex_;
  torch::nn::Sequential model_ = make_model();
  torch::optim::Adam optimizer_{model_->parameters(), 0.003};
  std::int64_t pushes_ = 0;
};

void train(rpc::Agent& agent, int steps) {
  torch::nn::Sequential model = make_model();
  for (int step = 0; step < steps; ++step) {
    const auto weights = agent.call<torch::Tensor>({"ps", "pull"}).get();
    torch::nn::utils::vector_to_parameters(weights, model->parameters());
    model->zero_grad();
    loss_of(model, 64).backward();
    std::vector<torch::Tensor> gradients;
    for (const auto& parameter : model->parameters())
      gradients.push_back(parameter.grad().flatten());
    agent.call<std::int64_t>({"ps", "push"}, torch::cat(gradients)).get();
  }
}

int main() {
  return lockstep::record([] {
    lockstep::World world = lockstep::init();
    torch::set_num_threads(1);
    torch::manual_seed(world.rank());
    const bool is_server = world.rank() == 0;

    ParameterServer server;
    rpc::Agent agent(
        world, {.name = is_server ? "ps" : lockstep::concat("trainer", world.rank()),
                .setup = [&](rpc::Agent& self) {
                  if (!is_server) return;
                  self.serve("pull", [&] { return server.pull(); });
                  self.serve("push", [&](torch::Tensor gradient) { return server.push(gradient); });
                }});
    if (!is_server) train(agent, 4000 / (world.world_size() - 1));
    agent.shutdown(std::chrono::minutes(5));
    if (is_server) std::cout << "Trained to a loss of " << std::fixed << server.loss() << std::endl;
    return 0;
  });
}
