#include "lockstep/step_profiler.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
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

/// The events of a trace whose names contain `name`, in the order in which they began.
std::vector<Event> events_of(const nlohmann::json& trace, const std::string& name) {
  std::vector<Event> events;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.value("ph", "") != "X") continue;
    if (event.at("name").get<std::string>().find(name) == std::string::npos) continue;
    const double begin = event.at("ts"), duration = event.at("dur");
    events.push_back({.thread = event.at("tid").dump(), .begin = begin, .end = begin + duration});
  }
  std::ranges::sort(events, {}, &Event::begin);
  return events;
}

std::set<std::string> threads_of(const std::vector<Event>& events) {
  std::set<std::string> threads;
  for (const Event& event : events) threads.insert(event.thread);
  return threads;
}

constexpr const char* kEndOfBackward = "end of backward";

/// Knows whether a bucket has been reduced, by the same events that the profiler sees. Their ends,
/// because by then the profiler has certainly noted their begins.
class ReductionsSeen {
 public:
  ReductionsSeen()
      : handle_(at::addGlobalCallback(
            at::RecordFunctionCallback(&begin, &end).scopes({at::RecordScope::FUNCTION}))) {}
  ~ReductionsSeen() { at::removeCallback(handle_); }
  ReductionsSeen(const ReductionsSeen&) = delete;

  /// Those that have begun before no longer count.
  void forget() {
    const std::lock_guard lock(mutex_);
    ++round_;
    seen_ = false;
  }
  bool wait_for_one() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [] { return seen_; });
  }

 private:
  struct Round : at::ObserverContext {
    explicit Round(int number) : number(number) {}
    const int number;
  };

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    if (std::string_view(function.name()) != "lockstep::all_reduce") return nullptr;
    const std::lock_guard lock(mutex_);
    return std::make_unique<Round>(round_);
  }
  static void end(const at::RecordFunction&, at::ObserverContext* begun) {
    if (begun == nullptr) return;
    const std::lock_guard lock(mutex_);
    if (static_cast<Round*>(begun)->number != round_) return;
    seen_ = true;
    changed_.notify_all();
  }

  // Static, because a callback is a plain function.
  static inline std::mutex mutex_;
  static inline std::condition_variable changed_;
  static inline int round_ = 0;
  static inline bool seen_ = false;
  at::CallbackHandle handle_;
};

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
  // The end of backward waits until a bucket of its step has been reduced: were buckets
  // reduced after backward only, it would wait in vain.
  ReductionsSeen seen;
  Trainer trainer(world,
                  {.steps = 8,
                   .ddp = {.bucket_cap_mb = 0.5, .reduction = Reduction::ordered},
                   .progress = false,
                   .profile = {.first_step = 3, .steps = kSteps, .folder = folder / "trace"}});
  // The first step has a single bucket: they are laid out in the order of its gradients.
  std::int64_t step = 0;
  trainer.fit(model, data, [&](auto& model, const auto& batch) {
    if (step++ == 0) return torch::mse_loss(model(std::get<0>(batch)), std::get<1>(batch));
    seen.forget();
    // The gradient of the input is computed when those of the other layers are.
    auto input = std::get<0>(batch).clone().requires_grad_();
    auto loss = torch::mse_loss(model(input), std::get<1>(batch));
    input.register_hook([&seen](const torch::Tensor&) {
      RECORD_FUNCTION(kEndOfBackward, std::vector<c10::IValue>());
      EXPECT_TRUE(seen.wait_for_one()) << "no bucket is reduced during backward";
    });
    return loss;
  });

  const nlohmann::json trace =
      read_json(concat(folder / "trace", "/trace_rank_", world.rank(), ".json"));
  const std::vector<Event> reductions = events_of(trace, "lockstep::all_reduce");
  const std::vector<Event> backwards = events_of(trace, "evaluate_function: AddmmBackward0");
  const std::vector<Event> ends = events_of(trace, kEndOfBackward);
  EXPECT_GE(reductions.size(), 4u * kSteps) << "of four layers of 1 MiB, each in a bucket";
  ASSERT_EQ(backwards.size(), 5u * kSteps);
  ASSERT_EQ(ends.size(), std::size_t(kSteps));

  // The thread that trains reduces a step's last bucket itself: it has nothing else to do then.
  const std::set<std::string> training = threads_of(backwards);
  ASSERT_EQ(training.size(), 1u);
  for (std::int64_t i = 0; i < kSteps; ++i) {
    const Event backward{.begin = backwards[5 * i].begin, .end = ends[i].end};
    EXPECT_TRUE(std::ranges::any_of(reductions,
                                    [&](const Event& reduction) {
                                      return reduction.thread != *training.begin() &&
                                             reduction.overlaps(backward);
                                    }))
        << "profiled step " << i;
  }
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
