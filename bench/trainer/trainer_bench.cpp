// What a step of the Trainer costs over one of a loop written by hand: the same model, loader,
// DistributedDataParallel and optimizer, on two ranks of this machine. The two take turns in one
// process, so that both meet the same load. trainer.py starts it and reads what it prints.
#include <chrono>
#include <cmath>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "lockstep/ddp.h"
#include "lockstep/loader.h"
#include "lockstep/optimizer.h"
#include "lockstep/spawn.h"
#include "lockstep/trainer.h"
#include "lockstep/world.h"
#include "tests/parity/models.h"

namespace {

using Clock = std::chrono::steady_clock;
namespace F = torch::nn::functional;

constexpr std::int64_t kLogEvery = 10;  // steps; the Trainer's default

struct Case {
  std::string name;
  std::int64_t batch_size = 1;
  std::int64_t warm_up = 5;  // steps: buckets are built anew after the first one
  std::int64_t steps = 1;    // that are measured in a round
};

/// Notes when the measured steps of a run began and ended. The loss function calls it, once a step,
/// in both loops.
class StepClock {
 public:
  explicit StepClock(const Case& measured) : case_(measured) {}

  void tick() {
    ++seen_;
    if (seen_ == case_.warm_up) {
      begin_ = Clock::now();
      processor_begin_ = std::clock();
    } else if (seen_ == case_.warm_up + case_.steps) {
      wall_ = std::chrono::duration<double>(Clock::now() - begin_).count();
      processor_ = static_cast<double>(std::clock() - processor_begin_) / CLOCKS_PER_SEC;
    }
  }
  /// The step that has ticked last ends the measurement and is not a part of it.
  bool done() const { return seen_ >= all_steps(); }
  std::int64_t all_steps() const { return case_.warm_up + case_.steps; }

  double wall_us() const { return 1e6 * wall_ / case_.steps; }
  double processor_us() const { return 1e6 * processor_ / case_.steps; }

 private:
  const Case& case_;
  std::int64_t seen_ = 0;
  Clock::time_point begin_;
  std::clock_t processor_begin_ = 0;
  double wall_ = 0, processor_ = 0;
};

template <typename Model, typename Data, typename Loss>
void by_hand(lockstep::World& world, std::shared_ptr<Model> model, Data& data, Loss loss_of,
             const StepClock& clock) {
  lockstep::DistributedDataParallel<Model> ddp(world, model);
  lockstep::SGD optimizer(lockstep::named_parameters(*model), {.lr = 1e-3});
  data.deal({.slots = world.world_size(), .mine = {world.rank()}});
  std::int64_t step = 0;
  double shown_loss = 0;
  for (std::int64_t epoch = 0; !clock.done(); ++epoch) {
    for (auto& batch : data.epoch(epoch)) {
      ddp.zero_grad();
      const torch::Tensor loss = loss_of(ddp, batch);
      loss.backward();
      optimizer.step();
      if (++step % kLogEvery == 0) shown_loss = loss.template item<double>();
      if (clock.done()) break;
    }
  }
  if (!std::isfinite(shown_loss)) throw lockstep::Error("the loss is not finite");
}

template <typename Model, typename Data, typename Loss>
void by_trainer(lockstep::World& world, std::shared_ptr<Model> model, Data& data, Loss loss_of,
                const StepClock& clock) {
  lockstep::Trainer trainer(world, {.steps = clock.all_steps(),
                                    .optimizer = lockstep::SGDOptions{.lr = 1e-3},
                                    .log_every = kLogEvery,
                                    .progress = false});
  trainer.fit(model, data, loss_of);
}

// Prints "<name> <wall by hand> <wall by the Trainer> <processor by hand> <by the Trainer>", in
// microseconds a step, for every round.
template <typename MakeModel, typename Dataset, typename Loss>
void measure(lockstep::World& world, const Case& measured, int rounds, MakeModel make_model,
             Dataset& dataset, Loss loss_of) {
  for (int round = 0; round < rounds; ++round) {
    StepClock hand(measured), trained(measured);
    for (const bool trainer : {round % 2 == 0, round % 2 == 1}) {
      lockstep::Loader data(dataset, {.batch_size = measured.batch_size, .shuffle = true});
      torch::manual_seed(0);
      auto model = make_model();
      StepClock& clock = trainer ? trained : hand;
      const auto timed_loss = [&](auto& model, const auto& batch) {
        clock.tick();
        return loss_of(model, batch);
      };
      world.barrier();
      if (trainer) {
        by_trainer(world, model, data, timed_loss, clock);
      } else {
        by_hand(world, model, data, timed_loss, clock);
      }
    }
    if (world.rank() == 0) {
      std::cout << measured.name << ' ' << hand.wall_us() << ' ' << trained.wall_us() << ' '
                << hand.processor_us() << ' ' << trained.processor_us() << std::endl;
    }
  }
}

void run(int rounds, const std::string& only) {
  at::set_num_threads(1);
  lockstep::World world = lockstep::init({.backend = "gloo", .device = "cpu"});
  torch::manual_seed(0);
  if (only.empty() || only == "linear") {
    lockstep::TensorDataset dataset(torch::rand({2048, 20}), torch::rand({2048, 1}));
    measure(
        world, {.name = "linear", .batch_size = 32, .warm_up = 200, .steps = 2000}, rounds,
        [] { return torch::nn::Linear(20, 1).ptr(); }, dataset,
        [](auto& model, const auto& batch) -> torch::Tensor {
          const auto& [x, y] = batch;
          return torch::mse_loss(model(x), y);
        });
  }
  if (only.empty() || only == "gpt") {
    lockstep::TensorDataset dataset(torch::randint(256, {1024, 65}, torch::kLong));
    const parity::GptOptions size{
        .vocabulary = 256, .length = 64, .width = 128, .layers = 4, .heads = 4};
    measure(
        world, {.name = "gpt", .batch_size = 4, .warm_up = 3, .steps = 12}, rounds,
        [&size] { return std::make_shared<parity::Gpt>(size); }, dataset,
        [](auto& model, const auto& tokens) -> torch::Tensor {
          return F::cross_entropy(model(tokens.slice(1, 0, -1)).flatten(0, 1),
                                  tokens.slice(1, 1).flatten());
        });
  }
}

}  // namespace

// trainer_bench ROUNDS [MODEL]
int main(int argc, char** argv) try {
  const int rounds = argc > 1 ? std::stoi(argv[1]) : 10;
  const std::string only = argc > 2 ? argv[2] : "";
  lockstep::spawn([&](int) { run(rounds, only); }, 2);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
