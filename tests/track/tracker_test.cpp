#include "lockstep/tracker.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "core/unique_fd.h"
#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"
#include "track/metrics_file.h"

using namespace lockstep;
using lockstep::testing::read_text;
using lockstep::testing::TemporaryFolder;
using nlohmann::json;

namespace {

using Steps = std::vector<std::int64_t>;

constexpr std::chrono::milliseconds kPatience{60'000};  // of a machine that is slow

Steps steps_of_file(const std::string& path) {
  Steps steps;
  for (const MetricLine& line : read_metrics(path).lines) steps.push_back(line.step);
  return steps;
}

// The lines that a tracker has reported.
struct Reports {
  std::mutex mutex;
  std::vector<std::string> lines;

  std::function<void(const std::string&)> listener() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex);
      lines.push_back(line);
    };
  }
};

std::int64_t records_named(const std::string& path, const std::string& kind) {
  return std::ranges::count_if(read_track_records(path),
                               [&](const json& record) { return record["kind"] == kind; });
}

}  // namespace

TEST(Tracker, all_kinds_of_records_come_to_the_files_of_the_rank) {
  const TemporaryFolder folder;
  {
    Tracker tracker({.directory = folder / "run",
                     .rank = 3,
                     .tracking = {.config = {{"lr", 0.1}, {"model", {{"layers", 2}}}}},
                     .patience = kPatience});
    tracker.metrics(10, {{"loss", 2.5}, {"step", 99}});
    tracker.event("snapshot", {{"step", 10}});
    tracker.text(10, "sample", "once upon\na time");
    tracker.histogram(10, "weights", Histogram::of(std::vector<double>{1, 2, 3, 4}, 2));
    tracker.system({{"cpu", 12.5}});
    tracker.finish(true);
  }
  const auto metrics = read_metrics(folder / "run/metrics/rank_3.jsonl").lines;
  ASSERT_EQ(metrics.size(), 1u);
  EXPECT_EQ(metrics[0].step, 10) << "a value of that name does not hide it";
  EXPECT_EQ(metrics[0].values, (json{{"loss", 2.5}}));
  const auto records = read_track_records(folder / "run/records/rank_3.jsonl");
  std::vector<std::string> kinds;
  for (const json& record : records) kinds.push_back(record["kind"]);
  EXPECT_EQ(kinds,
            (std::vector<std::string>{"start", "event", "text", "histogram", "system", "end"}));
  EXPECT_EQ(records[0]["config"]["model"]["layers"], 2);
  EXPECT_EQ(records[1]["event"], "snapshot");
  EXPECT_EQ(records[2]["text"], "once upon\na time");
  EXPECT_EQ(records[3]["counts"], (json{2, 2}));
  EXPECT_EQ(records[5]["succeeded"], true);
}

TEST(Tracker, records_of_many_threads_are_all_written_each_on_a_line) {
  const TemporaryFolder folder;
  {
    Tracker tracker({.directory = folder / "run", .patience = kPatience});
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&tracker, thread] {
        for (int i = 0; i < 500; ++i) tracker.event("tick", {{"thread", thread}, {"i", i}});
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(tracker.flush());
  }
  EXPECT_EQ(records_named(folder / "run/records/rank_0.jsonl", "event"), 2000);
}

TEST(Tracker, a_killed_process_leaves_all_that_was_flushed) {
  const TemporaryFolder folder;
  const std::string directory = folder / "run";
  const pid_t child = ::fork();
  if (child == 0) {
    Tracker tracker({.directory = directory,
                     .tracking = {.tensorboard = true, .wandb = true},
                     .patience = kPatience});
    for (int step = 1; step <= 100; ++step) tracker.metrics(step, {{"loss", 1.0}});
    tracker.flush();
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(steps_of_file(directory + "/metrics/rank_0.jsonl").size(), 100u);
}

TEST(Tracker, a_run_that_goes_on_has_each_step_once) {
  const TemporaryFolder folder;
  const std::string path = folder / "run/metrics/rank_0.jsonl";
  {
    Tracker tracker({.directory = folder / "run", .patience = kPatience});
    for (int step = 1; step <= 8; ++step) tracker.metrics(step, {{"loss", step}});
  }
  Tracker tracker({.directory = folder / "run",
                   .place = TrackPlace{.lines = 5, .step = 5},
                   .patience = kPatience});
  ASSERT_EQ(tracker.tail().size(), 5u);
  EXPECT_EQ(tracker.tail().back().step, 5);
  for (int step = 6; step <= 9; ++step) tracker.metrics(step, {{"loss", -step}});
  EXPECT_TRUE(tracker.flush());
  EXPECT_EQ(steps_of_file(path), (Steps{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(read_metrics(path).lines[5].values["loss"], -6);
}

TEST(Tracker, a_full_disk_is_reported_once_and_the_run_goes_on) {
  const TemporaryFolder folder;
  Reports reports;
  const std::string path = folder / "run/metrics/rank_0.jsonl";
  // A limit on the size of files fails as a full disk does: in the middle of a write.
  const rlimit limit{.rlim_cur = 2000, .rlim_max = RLIM_INFINITY};
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  {
    Tracker tracker({.directory = folder / "run",
                     .patience = kPatience,
                     .retry_after = std::chrono::milliseconds(1),
                     .report = reports.listener()});
    for (int step = 1; step <= 200; ++step) {
      tracker.metrics(step, {{"loss", 1.0 / step}});
      EXPECT_TRUE(tracker.flush()) << step;
    }
    EXPECT_LE(std::filesystem::file_size(path), 2000u);
    EXPECT_EQ(read_text(path).back(), '\n') << "half a line was taken back";
    EXPECT_EQ(reports.lines.size(), 1u);
    EXPECT_NE(reports.lines.front().find("File too large"), std::string::npos)
        << reports.lines.front();
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    // Once there is room the file goes on. How long until the next try is not known here.
    for (int i = 0; i < 1000 && reports.lines.size() == 1; ++i) {
      tracker.metrics(1000 + i, {{"loss", 0}});
      EXPECT_TRUE(tracker.flush());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  std::signal(SIGXFSZ, handler);
  ASSERT_EQ(reports.lines.size(), 2u);
  EXPECT_NE(reports.lines.back().find("works again"), std::string::npos) << reports.lines.back();
  const Steps steps = steps_of_file(path);
  EXPECT_TRUE(std::ranges::is_sorted(steps));
  EXPECT_EQ(read_metrics(path).skipped, 0);
}

TEST(Tracker, a_folder_that_cannot_be_made_does_not_stop_a_run) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "in the way";
  Reports reports;
  {
    Tracker tracker(
        {.directory = folder / "file", .patience = kPatience, .report = reports.listener()});
    for (int step = 1; step <= 10; ++step) tracker.metrics(step, {{"loss", 1}});
    EXPECT_TRUE(tracker.flush());
  }
  EXPECT_EQ(reports.lines.size(), 1u);
}

// A pipe that nobody reads is a disk that does not answer.
TEST(Tracker, a_disk_that_hangs_costs_records_and_no_time) {
  // The thread that is left behind may still write when the pipe is closed.
  std::signal(SIGPIPE, SIG_IGN);
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run/metrics");
  const std::string path = folder / "run/metrics/rank_0.jsonl";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  UniqueFd reader(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(reader);
  Reports reports;
  {
    Tracker tracker({.directory = folder / "run",
                     .queue_limit = 100,
                     .patience = std::chrono::milliseconds(50),
                     .report = reports.listener()});
    const std::string long_text(1000, 'x');
    for (int step = 1; step <= 1000; ++step) tracker.metrics(step, {{long_text, 1}});
    EXPECT_FALSE(tracker.flush());
    EXPECT_GT(tracker.dropped(), 0u);
  }
  const std::lock_guard lock(reports.mutex);
  ASSERT_EQ(reports.lines.size(), 2u);
  EXPECT_NE(reports.lines[0].find("more are dropped"), std::string::npos) << reports.lines[0];
  EXPECT_NE(reports.lines[1].find("does not answer"), std::string::npos) << reports.lines[1];
}

TEST(TrackingOptions, a_list_names_the_sinks) {
  TrackingOptions options;
  choose_sinks(options, "jsonl,wandb");
  EXPECT_TRUE(options.wandb);
  EXPECT_FALSE(options.tensorboard);
  EXPECT_THROW(choose_sinks(options, "jsonl,csv"), InvalidArgument);
}

TEST(Histogram, counts_what_is_finite) {
  const std::vector<double> values = {0, 1, 1, 4, NAN, INFINITY};
  const Histogram histogram = Histogram::of(values, 4);
  EXPECT_EQ(histogram.edges, (std::vector<double>{0, 1, 2, 3, 4}));
  EXPECT_EQ(histogram.counts, (std::vector<double>{1, 2, 0, 1}));
  EXPECT_EQ(histogram.sum, 6);
  EXPECT_TRUE(Histogram::of({}).counts.empty());
  EXPECT_EQ(Histogram::of(std::vector<double>{5, 5}, 2).counts, (std::vector<double>{2, 0}));
}
