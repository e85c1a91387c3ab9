// One C++ rank of the DDP step benchmark; ddp_step.py starts it and holds the Python side. A step
// is forward, backward with the reduction in it, the optimizer, and zero_grad.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <iostream>
#include <limits>
#include <string>

#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/error.h"
#include "lockstep/world.h"
#include "tests/parity/models.h"
#include "tests/support/link_bytes.h"

namespace {

using Clock = std::chrono::steady_clock;
namespace F = torch::nn::functional;

struct Options {
  double seconds = 1;  // of measuring, per model
  lockstep::Reduction reduction = lockstep::Reduction::automatic;
  std::string link;  // the interface to other machines, whose bytes are counted
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--seconds") {
      options.seconds = std::stod(value);
    } else if (flag == "--link") {
      options.link = value;
    } else if (flag == "--reduction" && value == "native") {
      options.reduction = lockstep::Reduction::native;
    } else if (flag == "--reduction" && value == "ordered") {
      options.reduction = lockstep::Reduction::ordered;
    } else if (flag != "--reduction" || value != "automatic") {
      throw lockstep::InvalidArgument("ddp_step: unknown option " + flag + " " + value);
    }
  }
  return options;
}

template <typename Step>
double seconds_of(int steps, Step& step) {
  const auto start = Clock::now();
  for (int i = 0; i < steps; ++i) step();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Prints "<name> <parameters> <microseconds per step> <of processor time> <bytes on the link per
// step, of all ranks that share it>" on rank 0.
template <typename Model, typename LossOf>
void measure(lockstep::World& world, const Options& options, const std::string& name,
             std::shared_ptr<Model> model, LossOf loss_of) {
  lockstep::DistributedDataParallel<Model> ddp(world, model, {.reduction = options.reduction});
  std::vector<torch::Tensor> parameters;
  std::int64_t size = 0;
  for (const auto& parameter : model->parameters()) {
    const auto same = [&](const torch::Tensor& other) { return other.is_same(parameter); };
    if (std::ranges::any_of(parameters, same)) continue;  // tied weights are one parameter
    parameters.push_back(parameter);
    size += parameter.numel();
  }
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(1e-3));
  auto step = [&] {
    loss_of(ddp).backward();
    optimizer.step();
    ddp.zero_grad();
  };

  // The first steps build and rebuild the buckets; the next ones tell how many steps to measure,
  // which both ranks must agree on. The best of 20 blocks counts: the others met more of whatever
  // else the machine does.
  constexpr int kBlocks = 20;
  seconds_of(5, step);
  const double wanted = options.seconds * 5 / seconds_of(5, step) / kBlocks;
  torch::Tensor count = torch::tensor(wanted, torch::kDouble);
  world.group().broadcast(count);
  const int steps = std::max(1, static_cast<int>(count.item<double>()));
  world.barrier();
  double best = std::numeric_limits<double>::infinity();
  const std::clock_t before = std::clock();
  const auto bytes_before = lockstep::testing::link_bytes(options.link);
  for (int block = 0; block < kBlocks; ++block) best = std::min(best, seconds_of(steps, step));
  const double cpu = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC / kBlocks;
  const auto bytes =
      static_cast<double>(lockstep::testing::link_bytes(options.link) - bytes_before) / kBlocks;
  if (world.rank() == 0) {
    std::cout << name << ' ' << size << ' ' << 1e6 * best / steps << ' ' << 1e6 * cpu / steps << ' '
              << bytes / steps << std::endl;
  }
}

void run(const Options& options) {
  at::set_num_threads(1);
  lockstep::World world = lockstep::init({.device = "cpu"});
  torch::manual_seed(world.rank());

  {
    const auto x = torch::rand({32, 20}), y = torch::rand({32, 1});
    measure(world, options, "linear", torch::nn::Linear(20, 1).ptr(),
            [&](auto& ddp) { return torch::mse_loss(ddp.forward(x), y); });
  }
  {
    const auto x = torch::rand({8, 512});
    const auto y = torch::randint(10, {8}, torch::kLong);
    auto model =
        std::make_shared<parity::Mlp>(std::vector<std::int64_t>{512, 2048, 2048, 2048, 10});
    measure(world, options, "mlp", model,
            [&](auto& ddp) { return F::cross_entropy(ddp.forward(x), y); });
  }
  {
    const auto tokens = torch::randint(256, {4, 65}, torch::kLong);
    const auto x = tokens.slice(1, 0, -1), y = tokens.slice(1, 1).flatten();
    const parity::GptOptions size{
        .vocabulary = 256, .length = 64, .width = 128, .layers = 4, .heads = 4};
    measure(world, options, "gpt", std::make_shared<parity::Gpt>(size),
            [&](auto& ddp) { return F::cross_entropy(ddp.forward(x).flatten(0, 1), y); });
  }
}

}  // namespace

int main(int argc, char** argv) try {
  run(parse(argc, argv));
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
