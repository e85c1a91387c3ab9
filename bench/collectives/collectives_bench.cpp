// One rank of the benchmark of collectives; collectives.py starts it. Each round measures every
// case on Gloo and on shared memory, one after the other, in the same processes.
#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/world.h"

namespace {

using Clock = std::chrono::steady_clock;
using lockstep::ProcessGroup;

struct Case {
  std::string name;
  std::int64_t bytes;
  std::function<void(ProcessGroup&)> call;
};

std::vector<Case> make_cases(int ranks) {
  std::vector<Case> cases;
  for (const std::int64_t bytes :
       {std::int64_t{1} << 10, std::int64_t{1} << 20, std::int64_t{25} << 20}) {
    const at::Tensor data = torch::ones({bytes / 4});
    const auto add = [&](const char* name, std::function<void(ProcessGroup&)> call) {
      cases.push_back({name, bytes, std::move(call)});
    };
    // Zeros stay finite however often they are added.
    const at::Tensor zeros = torch::zeros({bytes / 4});
    add("all_reduce", [zeros](ProcessGroup& group) { group.all_reduce(zeros); });
    add("broadcast", [data](ProcessGroup& group) { group.broadcast(data); });
    const at::Tensor gathered = torch::empty({bytes / 4 * ranks});
    add("all_gather", [=](ProcessGroup& group) { group.all_gather_into_tensor(gathered, data); });
  }
  cases.push_back({"barrier", 0, [](ProcessGroup& group) { group.barrier(); }});
  return cases;
}

double seconds_of(ProcessGroup& group, const Case& each, int calls) {
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) each.call(group);
  return std::chrono::duration<double>(Clock::now() - start).count() / calls;
}

// Seconds per call: the best of a few blocks whose length the ranks agree on.
double measure(ProcessGroup& group, const Case& each, double seconds) {
  constexpr int kBlocks = 5;
  seconds_of(group, each, 2);
  const at::Tensor wanted =
      torch::tensor(seconds / kBlocks / seconds_of(group, each, 3), at::kDouble);
  group.broadcast(wanted);
  const int calls = std::clamp(static_cast<int>(wanted.item<double>()), 1, 20'000);
  double best = std::numeric_limits<double>::infinity();
  for (int block = 0; block < kBlocks; ++block) {
    best = std::min(best, seconds_of(group, each, calls));
  }
  return best;
}

// Prints "<collective> <bytes> <microseconds on Gloo> <on shared memory>" on rank 0, for each
// round.
void run(int rounds, double seconds) {
  at::set_num_threads(1);
  lockstep::World world = lockstep::init({.backend = "shm", .device = "cpu"});
  if (world.group().backend() != "shm") throw lockstep::Error("the ranks share no memory");
  std::vector<int> everyone(static_cast<std::size_t>(world.world_size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  ProcessGroup gloo = world.new_group({.ranks = everyone, .backend = "gloo"});
  const std::vector<Case> cases = make_cases(world.world_size());
  for (int round = 0; round < rounds; ++round) {
    for (const Case& each : cases) {
      const double on_gloo = measure(gloo, each, seconds);
      const double on_shm = measure(world.group(), each, seconds);
      if (world.rank() == 0) {
        std::cout << each.name << ' ' << each.bytes << ' ' << 1e6 * on_gloo << ' ' << 1e6 * on_shm
                  << std::endl;
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) try {
  run(argc > 1 ? std::stoi(argv[1]) : 1, argc > 2 ? std::stod(argv[2]) : 0.2);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
