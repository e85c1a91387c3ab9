// Writes a run for tools_test.py to read: track_job FOLDER RANK FIRST LAST [KEEP]
// Steps FIRST to LAST; with KEEP the run goes on after that step. One line and more every step.
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#include "lockstep/tracker.h"

using namespace lockstep;

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  const std::string folder = argv[1];
  const long first = std::atol(argv[3]), last = std::atol(argv[4]);
  TrackerOptions options{.directory = folder, .rank = std::atoi(argv[2])};
  options.tracking = {.tensorboard = true,
                      .wandb = true,
                      .wandb_options = {.runs = WandbOptions::Runs::rank,
                                        .project = "tools",
                                        .experiment = "exp",
                                        .tags = {"one", "two"}},
                      .config = {{"lr", 0.25}, {"name", "tiny"}, {"model", {{"layers", 2}}}}};
  if (argc > 5) {
    const long keep = std::atol(argv[5]);
    options.place = {.lines = keep, .step = keep};
  }
  options.patience = std::chrono::minutes(1);
  Tracker tracker(options);
  for (long step = first; step <= last; ++step) {
    tracker.metrics(step, {{"loss", 1.0 / static_cast<double>(step)}, {"opt/lr", 0.25}});
  }
  tracker.text(last, "sample", "**once** upon a time");
  tracker.histogram(last, "weights", Histogram::of(std::vector<double>{-1, 0, 0.5, 1}, 4));
  tracker.system({{"cpu", 12.5}, {"gpu.0.gpu", 87.5}});
  tracker.console("a line of the program\n");
  const std::string notes = folder + "/notes.txt";
  std::ofstream(notes) << "notes\n";
  tracker.file(notes, "notes.txt");
  tracker.finish(true);
  return 0;
}
