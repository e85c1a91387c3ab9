// A save is cut off, or gets an error, at each of its system calls in turn.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "tests/archive/files.h"
#include "tests/archive/some_files.h"
#include "tests/core/temporary_folder.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

namespace fs = std::filesystem;

struct Outcome {
  int status = 0;  // as wait() gives it
  std::string output;
};

// Runs save_helper and waits for it.
Outcome run_helper(const std::string& directory, int step, int bytes,
                   const std::map<std::string, std::string>& environment, const std::string& log) {
  std::string command;
  for (const auto& [name, value] : environment) command += concat(name, "='", value, "' ");
  command += concat("'", LOCKSTEP_SAVE_HELPER, "' '", directory, "' ", step, " ", bytes, " > '",
                    log, "' 2>&1");
  // The shell's own echo of a killed child would be noise.
  const int status = std::system(concat("exec 2>/dev/null; ", command, "; exit $?").c_str());
  return {status, read_text(log)};
}

std::set<std::int64_t> intact_steps(const std::string& directory) {
  std::set<std::int64_t> steps;
  for (const FoundSnapshot& each : find_snapshots(directory)) {
    const std::string problem = find_damage(each);
    // A name is only ever given to what is complete.
    EXPECT_EQ(problem, "") << each.name;
    if (problem.empty()) steps.insert(each.step);
  }
  return steps;
}

bool has_leftovers(const std::string& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename().string().starts_with(".tmp-")) return true;
  }
  return false;
}

struct SweepOptions {
  std::string kind;
  bool existing = false;  // the step to be saved is there already and is replaced
  int bytes = 3000;       // of the tensor; large ones are written past the page cache
};

class Sweep {
 public:
  explicit Sweep(const SweepOptions& options)
      : kind_(options.kind), step_(options.existing ? 3 : 4), bytes_(options.bytes) {
    fs::create_directories(template_);
    for (int step = 1; step <= 3; ++step) {
      save_some(template_, step, {.keep_last = 0}, 3000, step == 1);
    }
  }

  // Returns how many calls there are.
  int run() {
    for (int at = 1; at < 500; ++at) {
      if (!check(at)) return at - 1;
      if (::testing::Test::HasFailure()) return at;
    }
    ADD_FAILURE() << "a save does not end";
    return 0;
  }

 private:
  // False when the save was over before its call number `at`.
  bool check(int at) {
    const std::string directory = folder_ / concat("run_", at);
    fs::copy(template_, directory, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const Outcome outcome = run_helper(directory, step_, bytes_,
                                       {{"LD_PRELOAD", LOCKSTEP_FAULT_LIBRARY},
                                        {"LOCKSTEP_FAULT_UNDER", fs::canonical(directory)},
                                        {"LOCKSTEP_FAULT_AT", std::to_string(at)},
                                        {"LOCKSTEP_FAULT_KIND", kind_},
                                        {"LOCKSTEP_FAULT_LOG", folder_ / "fault"}},
                                       folder_ / "output");
    std::istringstream fault(read_text(folder_ / "fault"));
    long count = 0;
    std::string call;
    fault >> count >> call;
    SCOPED_TRACE(concat(kind_, " at call ", at, " (", call, "): ", outcome.output));
    const bool was_hit = count == at && call != "none";

    const std::set<std::int64_t> steps = intact_steps(directory);
    const bool is_saved = has(outcome.output, "saved\n");
    // The newest of before and the best are always there; nothing is lost by a save that fails.
    EXPECT_TRUE(steps.contains(3));
    EXPECT_EQ(read_pointer(directory, kBest), "step_1");
    EXPECT_TRUE(steps.contains(1));
    EXPECT_TRUE(steps.contains(2) || !has(outcome.output, "failed:"));
    EXPECT_TRUE(steps.contains(step_) || !is_saved);
    const bool is_error = kind_.starts_with("E");
    const int expected = was_hit && !is_error ? 128 + SIGKILL : is_saved ? 0 : 3;
    EXPECT_EQ(WEXITSTATUS(outcome.status), expected);

    // The next run saves as if nothing had happened, and cleans up.
    const Outcome next = run_helper(directory, 5, bytes_, {}, folder_ / "output");
    EXPECT_TRUE(has(next.output, "saved\n")) << next.output;
    EXPECT_TRUE(intact_steps(directory).contains(5));
    EXPECT_FALSE(has_leftovers(directory));
    EXPECT_EQ(read_pointer(directory, kLatest), "step_5");
    fs::remove_all(directory);
    fs::remove(folder_ / "fault");
    return was_hit;
  }

  std::string kind_;
  int step_;
  int bytes_;
  TemporaryFolder folder_;
  std::string template_ = folder_ / "template";
};

// Syncing takes no time in memory, and a sweep runs hundreds of saves.
class SaveUnderFaults : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (::access("/dev/shm", W_OK) == 0) ::setenv("TMPDIR", "/dev/shm", 1);
  }
};

void sweep(const SweepOptions& options) {
  const int calls = Sweep(options).run();
  EXPECT_GT(calls, 40);  // it is known to be more; fewer means that faults do not strike
  ::testing::Test::RecordProperty(options.kind, calls);
}

}  // namespace

TEST_F(SaveUnderFaults, a_crash_at_any_call_leaves_only_complete_snapshots) {
  sweep({.kind = "crash"});
}

TEST_F(SaveUnderFaults, a_write_that_is_cut_in_half_leaves_only_complete_snapshots) {
  sweep({.kind = "torn"});
}

TEST_F(SaveUnderFaults, a_power_cut_that_loses_what_was_not_synced_leaves_only_complete_snapshots) {
  sweep({.kind = "power"});
}

TEST_F(SaveUnderFaults, a_full_disk_at_any_call_costs_no_snapshot) {
  sweep({.kind = "ENOSPC"});
}

TEST_F(SaveUnderFaults, an_error_of_the_disk_at_any_call_costs_no_snapshot) {
  sweep({.kind = "EIO"});
}

TEST_F(SaveUnderFaults, a_step_is_replaced_whole_or_not_at_all) {
  sweep({.kind = "power", .existing = true});
  sweep({.kind = "EIO", .existing = true});
}

TEST_F(SaveUnderFaults, large_files_are_as_safe_as_small_ones) {
  for (const char* kind : {"torn", "power", "EIO"}) sweep({.kind = kind, .bytes = 3'000'001});
}
