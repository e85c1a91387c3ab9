// One rank of the benchmarks of collectives; collectives.py and ../hybrid/hybrid.py start it. Each
// round measures every case on Gloo and on another backend, one after the other, in the same
// processes.
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
#include "tests/support/link_bytes.h"

namespace {

using Clock = std::chrono::steady_clock;
using lockstep::ProcessGroup;

struct Case {
  std::string name;
  std::int64_t bytes;
  std::function<void(ProcessGroup&)> call;
};

// Sums grow with every call, so now and then they begin again.
std::function<void(ProcessGroup&)> repeated_sum(const at::Tensor& data) {
  constexpr int kCallsAtMost = 32;  // 8 ranks: 2^96 times what it was
  data.normal_(0, 1e-3);
  return [data, first = data.clone(), calls = 0](ProcessGroup& group) mutable {
    if (calls++ % kCallsAtMost == 0) data.copy_(first);
    group.all_reduce(data);
  };
}

struct Options {
  int rounds = 1;
  double seconds = 0.2;  // of measuring a case in a round
  std::string backend = "shm";
  std::string link;  // the interface to other machines, whose bytes are counted
};

std::vector<Case> make_cases(ProcessGroup& owner, const Options& options) {
  const int ranks = owner.size();
  std::vector<Case> cases;
  for (const std::int64_t bytes :
       {std::int64_t{1} << 10, std::int64_t{1} << 20, std::int64_t{25} << 20}) {
    const at::Tensor data = torch::randn({bytes / 4});
    const auto add = [&](const char* name, std::function<void(ProcessGroup&)> call) {
      cases.push_back({name, bytes, std::move(call)});
    };
    add("all_reduce", repeated_sum(torch::empty({bytes / 4})));
    // In memory that the ranks share already; to Gloo it is memory like any other.
    add("all_reduce_shared", repeated_sum(owner.shared_empty_like(data)));
    if (!options.link.empty()) {
      add("all_reduce_bfloat16", repeated_sum(torch::empty({bytes / 2}, torch::kBFloat16)));
    }
    add("broadcast", [data](ProcessGroup& group) { group.broadcast(data); });
    const at::Tensor gathered = torch::empty({bytes / 4 * ranks});
    add("all_gather", [=](ProcessGroup& group) { group.all_gather_into_tensor(gathered, data); });
    // The first rank and the last, which are on different machines where there are several, and
    // all ranks in a ring.
    const at::Tensor received = torch::empty({bytes / 4});
    add("ping_pong", [=](ProcessGroup& group) {
      const int rank = group.rank(), last = group.size() - 1;
      if (rank == 0) group.send(data, {.peer = last});
      if (rank == 0) group.recv(received, {.peer = last});
      if (rank == last) group.recv(received, {.peer = 0});
      if (rank == last) group.send(data, {.peer = 0});
    });
    add("to_next", [=](ProcessGroup& group) {
      const int rank = group.rank(), ranks = group.size();
      lockstep::Work sent = group.isend(data, {.peer = (rank + 1) % ranks});
      group.recv(received, {.peer = (rank + ranks - 1) % ranks});
      sent.wait();
    });
  }
  cases.push_back({"barrier", 0, [](ProcessGroup& group) { group.barrier(); }});
  return cases;
}

double seconds_of(ProcessGroup& group, const Case& each, int calls) {
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) each.call(group);
  return std::chrono::duration<double>(Clock::now() - start).count() / calls;
}

struct Measured {
  double seconds = 0;  // per call
  double bytes = 0;    // on the link, per call
};

// The best of a few blocks whose length the ranks agree on.
Measured measure(ProcessGroup& group, const Case& each, const Options& options) {
  constexpr int kBlocks = 5;
  const double seconds = options.seconds;
  seconds_of(group, each, 2);
  const at::Tensor wanted =
      torch::tensor(seconds / kBlocks / seconds_of(group, each, 3), at::kDouble);
  group.broadcast(wanted);
  const int calls = std::clamp(static_cast<int>(wanted.item<double>()), 1, 20'000);
  double best = std::numeric_limits<double>::infinity();
  const auto before = lockstep::testing::link_bytes(options.link);
  for (int block = 0; block < kBlocks; ++block) {
    best = std::min(best, seconds_of(group, each, calls));
  }
  const auto bytes = static_cast<double>(lockstep::testing::link_bytes(options.link) - before);
  return {.seconds = best, .bytes = bytes / (kBlocks * calls)};
}

// Prints "<collective> <bytes> <microseconds on Gloo> <on the other backend> <bytes on the link by
// Gloo> <by the other>" on rank 0, for each round.
void run(const Options& options) {
  at::set_num_threads(1);
  lockstep::World world = lockstep::init({.backend = options.backend, .device = "cpu"});
  if (world.group().backend() != options.backend) throw lockstep::Error("ranks share no memory");
  std::vector<int> everyone(static_cast<std::size_t>(world.world_size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  ProcessGroup gloo = world.new_group({.ranks = everyone, .backend = "gloo"});
  torch::manual_seed(world.rank());
  const std::vector<Case> cases = make_cases(world.group(), options);
  for (int round = 0; round < options.rounds; ++round) {
    for (const Case& each : cases) {
      const Measured on_gloo = measure(gloo, each, options);
      const Measured on_other = measure(world.group(), each, options);
      if (world.rank() == 0) {
        std::cout << each.name << ' ' << each.bytes << ' ' << 1e6 * on_gloo.seconds << ' '
                  << 1e6 * on_other.seconds << ' ' << on_gloo.bytes << ' ' << on_other.bytes
                  << std::endl;
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) try {
  Options options;
  if (argc > 1) options.rounds = std::stoi(argv[1]);
  if (argc > 2) options.seconds = std::stod(argv[2]);
  if (argc > 3) options.backend = argv[3];
  if (argc > 4) options.link = argv[4];
  run(options);
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
