// The job of PyTorch's DDP tutorial: a linear model on 2,048 random samples.
#include <charconv>
#include <chrono>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/distributed_sampler.h"
#include "lockstep/environment.h"
#include "lockstep/error.h"
#include "lockstep/record.h"
#include "lockstep/spawn.h"
#include "lockstep/world.h"

namespace {

constexpr std::int64_t kDatasetSize = 2048;

constexpr const char* kHelp =
    R"(usage: toy_trainer [TOTAL_EPOCHS] [--batch_size N] [--ranks N]

Trains the model of PyTorch's DDP tutorial, Linear(20, 1), on 2,048 samples of random data.

  TOTAL_EPOCHS      passes over the data (10)
  --batch_size N    samples per rank and step (32)
  --ranks N         processes to start (1); under a launcher such as torchrun the ranks are there
                    already, and the option can be left out
  -h, --help        this text
)";

struct Options {
  int total_epochs = 10;
  int batch_size = 32;
  std::optional<int> ranks;
  bool help = false;
};

int parse_number(std::string_view name, std::string_view text, int highest) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > highest) {
    throw lockstep::InvalidArgument(lockstep::concat(
        name, " is \"", text, "\"; it must be a whole number from 1 to ", highest));
  }
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  bool epochs_given = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::string_view flag = word.substr(0, word.find('='));
    // Both "--ranks 2" and "--ranks=2".
    const auto value = [&]() -> std::string_view {
      if (flag.size() < word.size()) return word.substr(flag.size() + 1);
      if (i + 1 == argc) {
        throw lockstep::InvalidArgument(lockstep::concat(flag, " needs a number"));
      }
      return argv[++i];
    };
    if (word == "-h" || word == "--help") {
      options.help = true;
    } else if (flag == "--batch_size") {
      options.batch_size = parse_number(flag, value(), kDatasetSize);
    } else if (flag == "--ranks") {
      options.ranks = parse_number(flag, value(), 1024);
    } else if (word.starts_with("-")) {
      throw lockstep::InvalidArgument(
          lockstep::concat("there is no option ", flag, " (see --help)"));
    } else if (epochs_given) {
      throw lockstep::InvalidArgument(
          lockstep::concat("\"", word, "\" is one argument too many (see --help)"));
    } else {
      options.total_epochs = parse_number("TOTAL_EPOCHS", word, 1'000'000);
      epochs_given = true;
    }
  }
  return options;
}

void train(const Options& options) {
  lockstep::World world = lockstep::init();
  const torch::Device device = world.device();
  const std::string name = device.is_cuda() ? lockstep::concat("[GPU", world.local_rank(), "]")
                                            : lockstep::concat("[rank", world.rank(), "]");

  torch::manual_seed(0);  // the same data on every rank
  const torch::Tensor inputs = torch::rand({kDatasetSize, 20}, device);
  const torch::Tensor targets = torch::rand({kDatasetSize, 1}, device);

  torch::nn::Linear model(20, 1);
  model->to(device);
  lockstep::DistributedDataParallel ddp(world, model);
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/1e-3);
  lockstep::DistributedSampler sampler(
      {.dataset_size = kDatasetSize, .world_size = world.world_size(), .rank = world.rank()});

  std::size_t steps = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int epoch = 0; epoch < options.total_epochs; ++epoch) {
    sampler.set_epoch(epoch);
    const torch::Tensor order = torch::tensor(sampler.indices()).to(device);
    const auto input_batches = inputs.index_select(0, order).split(options.batch_size);
    const auto target_batches = targets.index_select(0, order).split(options.batch_size);
    torch::Tensor total_loss = torch::zeros({}, device);
    for (std::size_t i = 0; i < input_batches.size(); ++i) {
      ddp.zero_grad();
      const torch::Tensor loss = torch::mse_loss(ddp.forward(input_batches[i]), target_batches[i]);
      loss.backward();
      optimizer.step();
      total_loss += loss.detach();
    }
    steps += input_batches.size();
    std::cout << name << " Epoch " << epoch << " | Batchsize: " << options.batch_size
              << " | Steps: " << input_batches.size()
              << " | Loss: " << total_loss.item<double>() / input_batches.size() << std::endl;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (world.rank() == 0) {
    const double samples = 1.0 * sampler.size() * options.total_epochs * world.world_size();
    std::cout << "Trained " << options.total_epochs << " epochs on " << world.world_size()
              << " rank(s) in " << seconds.count()
              << " s: " << static_cast<std::int64_t>(steps / seconds.count()) << " steps/s, "
              << static_cast<std::int64_t>(samples / seconds.count()) << " samples/s" << std::endl;
  }
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (options.help) {
    std::cout << kHelp;
    return 0;
  }
  const auto launched = lockstep::detect_environment(lockstep::Environment::of_process());
  if (!launched) {
    lockstep::spawn([&](int) { train(options); }, options.ranks.value_or(1));
    return 0;
  }
  if (options.ranks && *options.ranks != launched->world_size) {
    throw lockstep::InvalidArgument(
        lockstep::concat("--ranks is ", *options.ranks, ", but the launcher (",
                         lockstep::to_string(launched->launcher), ") started ",
                         launched->world_size, "; leave it out"));
  }
  train(options);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::record(argc, argv, run);
}
