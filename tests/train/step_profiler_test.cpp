#include "lockstep/step_profiler.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "lockstep/loader.h"
#include "lockstep/trainer.h"
#include "tests/core/temporary_folder.h"
#include "tests/parity/models.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using lockstep::testing::TemporaryFolder;

namespace {

struct Event {
  std::string thread;
  double begin = 0;
  double end = 0;

  bool overlaps(const Event& other) const { return begin < other.end && other.begin < end; }
};

/// The events of a trace whose names contain `name`.
std::vector<Event> events_of(const nlohmann::json& trace, const std::string& name) {
  std::vector<Event> events;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.value("ph", "") != "X") continue;
    if (event.at("name").get<std::string>().find(name) == std::string::npos) continue;
    const double begin = event.at("ts"), duration = event.at("dur");
    events.push_back({.thread = event.at("tid").dump(), .begin = begin, .end = begin + duration});
  }
  return events;
}

std::set<std::string> threads_of(const std::vector<Event>& events) {
  std::set<std::string> threads;
  for (const Event& event : events) threads.insert(event.thread);
  return threads;
}

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);  // throws for what is not JSON
}

}  // namespace

RANKS_TEST(StepProfiler, a_trace_shows_buckets_reduced_beside_backward, 2) {
  constexpr std::int64_t kSteps = 4;
  const TemporaryFolder folder;
  World world = init();
  TensorDataset dataset(torch::rand({256, 512}), torch::rand({256, 10}));
  Loader data(dataset, {.batch_size = 32});
  auto model =
      std::make_shared<parity::Mlp>(std::vector<std::int64_t>{512, 512, 512, 512, 512, 10});
  Trainer trainer(world,
                  {.steps = 8,
                   .ddp = {.bucket_cap_mb = 0.5, .reduction = Reduction::ordered},
                   .progress = false,
                   .profile = {.first_step = 3, .steps = kSteps, .folder = folder / "trace"}});
  trainer.fit(model, data, [](auto& model, const auto& batch) {
    return torch::mse_loss(model(std::get<0>(batch)), std::get<1>(batch));
  });

  const nlohmann::json trace =
      read_json(concat(folder / "trace", "/trace_rank_", world.rank(), ".json"));
  const std::vector<Event> reductions = events_of(trace, "lockstep::all_reduce");
  const std::vector<Event> backwards = events_of(trace, "AddmmBackward0");
  EXPECT_GE(reductions.size(), 4u * kSteps) << "of four layers of 1 MiB, each in a bucket";
  ASSERT_GE(backwards.size(), 5u * kSteps);

  // The thread that trains reduces a step's last bucket itself: it has nothing else to do then.
  const std::set<std::string> training = threads_of(backwards);
  ASSERT_EQ(training.size(), 1u);
  std::int64_t beside = 0, overlapping = 0;
  for (const Event& reduction : reductions) {
    if (reduction.thread == *training.begin()) continue;
    ++beside;
    overlapping += std::ranges::any_of(
        backwards, [&](const Event& backward) { return reduction.overlaps(backward); });
  }
  EXPECT_GE(beside, 3 * kSteps);
  EXPECT_GE(overlapping, 1) << "of " << beside << " buckets none was reduced during backward";
}

TEST(StepProfiler, records_only_the_steps_it_was_told) {
  const TemporaryFolder folder;
  StepProfiler profiler({.first_step = 1, .steps = 2, .folder = folder / "trace"},
                        torch::Device(torch::kCPU));
  const auto x = torch::rand({8, 8});
  for (std::int64_t step = 0; step < 5; ++step) {
    profiler.before_step(step);
    for (std::int64_t i = 0; i <= step; ++i) torch::mm(x, x);
    profiler.after_step(step);
    EXPECT_EQ(profiler.written().empty(), step < 2) << step;
  }
  const nlohmann::json trace = read_json(profiler.written());
  EXPECT_EQ(events_of(trace, "aten::mm").size(), 2u + 3u);
}

TEST(StepProfiler, steps_without_a_folder_are_refused) {
  EXPECT_THROW(StepProfiler({.steps = 1}, torch::Device(torch::kCPU)), InvalidArgument);
  EXPECT_THROW(StepProfiler({.steps = -1, .folder = "x"}, torch::Device(torch::kCPU)),
               InvalidArgument);
  StepProfiler off({}, torch::Device(torch::kCPU));
  off.before_step(0);
  off.after_step(0);
  EXPECT_TRUE(off.written().empty());
}
