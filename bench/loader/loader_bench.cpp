// loader_bench CASE SECONDS WORKERS: samples per second of a Loader, in whole epochs after a first
// one that is not counted. The cases are those of loader.py.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>

#include "lockstep/loader.h"

namespace {

using Pair = std::pair<at::Tensor, at::Tensor>;

// A dataset that gives two tensors for each sample.
struct Pairs {
  at::Tensor inputs = at::rand({65'536, 20});
  at::Tensor targets = at::rand({65'536, 1});

  std::int64_t size() const { return inputs.size(0); }
  Pair get(std::int64_t index) const { return {inputs.select(0, index), targets.select(0, index)}; }
};

// Bytes, made into numbers: with a loop, as one writes it in C++; in Python it has to be operators.
struct Records {
  at::Tensor bytes = at::randint(256, {65'536, 128}, at::kByte);

  std::int64_t size() const { return bytes.size(0); }
  std::pair<at::Tensor, std::int64_t> get(std::int64_t index, lockstep::Random& random) const {
    const auto shift = static_cast<float>(random.uniform());
    const auto* in = bytes.const_data_ptr<std::uint8_t>() + index * 128;
    at::Tensor record = at::empty({128}, at::TensorOptions(at::kFloat));
    auto* out = record.mutable_data_ptr<float>();
    for (int i = 0; i < 128; ++i) out[i] = in[i] / 255.0f - shift;
    return {record, index % 10};
  }
};

// Small images, made ready as training does: to floats, normalised, half of them mirrored. Operator
// for operator what Python does.
struct Images {
  at::Tensor bytes = at::randint(256, {4'096, 3, 32, 32}, at::kByte);

  std::int64_t size() const { return bytes.size(0); }
  std::pair<at::Tensor, std::int64_t> get(std::int64_t index, lockstep::Random& random) const {
    at::Tensor image = bytes.select(0, index).to(at::kFloat).div_(255).sub_(0.5).div_(0.25);
    if (random.uniform() < 0.5) image = image.flip(2);
    return {image, index % 10};
  }
};

template <typename Dataset>
double samples_per_second(const Dataset& dataset, double seconds, int workers) {
  using Clock = std::chrono::steady_clock;
  lockstep::Loader loader(dataset, {.batch_size = 32, .shuffle = true, .num_workers = workers});
  Clock::time_point start;
  std::int64_t samples = 0;
  std::chrono::duration<double> passed{0};
  for (std::int64_t epoch = 0; passed.count() < seconds; ++epoch) {
    if (epoch == 1) start = Clock::now();
    for (auto& [inputs, targets] : loader.epoch(epoch)) {
      if (epoch > 0) samples += inputs.size(0);
    }
    if (epoch > 0) passed = Clock::now() - start;
  }
  return static_cast<double>(samples) / passed.count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: loader_bench CASE SECONDS WORKERS\n";
    return 2;
  }
  const std::string name = argv[1];
  const double seconds = std::atof(argv[2]);
  const int workers = std::atoi(argv[3]);
  double rate = 0;
  if (name == "tensors") {
    const Pairs pairs;
    rate =
        samples_per_second(lockstep::TensorDataset(pairs.inputs, pairs.targets), seconds, workers);
  } else if (name == "pairs") {
    rate = samples_per_second(Pairs{}, seconds, workers);
  } else if (name == "records") {
    rate = samples_per_second(Records{}, seconds, workers);
  } else if (name == "images") {
    rate = samples_per_second(Images{}, seconds, workers);
  } else {
    std::cerr << "loader_bench: no case \"" << name << "\"\n";
    return 2;
  }
  std::cout << rate << '\n';
}
