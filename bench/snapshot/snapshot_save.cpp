// Saves snapshots of a model with AdamW's state and prints, for each, how long training was paused
// and how long it took until everything was on the disk and had been read back.
//
//   snapshot_save DIRECTORY MEGABYTES ROUNDS
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <ATen/ops/rand.h>

#include "lockstep/error.h"
#include "lockstep/snapshot.h"
#include "lockstep/world.h"

using namespace lockstep;

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Layers of 4 MB, and two tensors of optimizer state for each: a third of the bytes is the model's.
Snapshot make_snapshot(double megabytes) {
  constexpr std::int64_t kWidth = 1024;
  const auto layers = static_cast<int>(megabytes / 3 / (4 * kWidth * kWidth / 1e6));
  Snapshot snapshot;
  for (int layer = 0; layer < layers; ++layer) {
    const std::string name = concat("layer.", layer, ".weight");
    snapshot.parts["model"].tensors[name] = at::rand({kWidth, kWidth});
    snapshot.parts["optimizer"].tensors[name + ".exp_avg"] = at::rand({kWidth, kWidth});
    snapshot.parts["optimizer"].tensors[name + ".exp_avg_sq"] = at::rand({kWidth, kWidth});
  }
  return snapshot;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: snapshot_save DIRECTORY MEGABYTES ROUNDS\n", stderr);
    return 2;
  }
  World world = init();
  SnapshotStore store(world, {.directory = argv[1], .keep_last = 1});
  Snapshot snapshot = make_snapshot(std::atof(argv[2]));
  store.reserve(snapshot);
  store.wait();
  for (int round = 1; round <= std::atoi(argv[3]); ++round) {
    snapshot.step = round;
    const auto begin = Clock::now();
    store.save(snapshot);
    const double pause = since(begin);
    store.wait();
    std::printf("%.6f %.6f\n", pause, since(begin));
    std::fflush(stdout);
    if (!store.last_error().empty()) return 1;
    // The next save is started by the one who measures.
    if (std::getchar() == EOF) break;
  }
  return 0;
}
