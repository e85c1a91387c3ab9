#include "tests/support/ranks.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

#include "core/subprocess.h"
#include "lockstep/error.h"
#include "lockstep/store.h"
#include "tests/core/temporary_folder.h"

namespace lockstep::testing {
namespace {

constexpr const char* kMark = "LOCKSTEP_TEST_RANK";

std::string current_test() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return concat(info->test_suite_name(), ".", info->name());
}

int machine_count(const RanksOptions& options) {
  const char* wanted = std::getenv("LOCKSTEP_TEST_MACHINES");
  return options.machines == 1 && wanted != nullptr ? std::atoi(wanted) : options.machines;
}

}  // namespace

int this_rank() {
  return std::atoi(std::getenv(kMark));
}

void kill_this_process() {
  kill(getpid(), SIGKILL);
  std::abort();
}

void run_in_ranks(const RanksOptions& options, const std::function<void()>& body) {
  if (std::getenv(kMark)) {
    body();
    return;
  }
  const TemporaryFolder folder;
  const Store store = Store::tcp({.serve = true});
  std::vector<Subprocess> ranks;
  for (int rank = 0; rank < options.count; ++rank) {
    SubprocessOptions process{
        .argv = {"/proc/self/exe", concat("--gtest_filter=", current_test()), "--gtest_brief=1"},
        .set_environment = {{kMark, std::to_string(rank)},
                            {"RANK", std::to_string(rank)},
                            {"LOCAL_RANK", std::to_string(rank)},
                            {"WORLD_SIZE", std::to_string(options.count)},
                            {"LOCAL_WORLD_SIZE", std::to_string(options.count)},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", std::to_string(store.port())},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                            {"LOCKSTEP_QUIET", "1"},
                            {"OMP_NUM_THREADS", "1"}},
        .unset_environment = {},
        .stdout_path = folder / concat("rank_", rank, ".log"),
        .stderr_path = folder / concat("rank_", rank, ".log")};
    if (const int machines = machine_count(options); machines > 1) {
      process.set_environment["LOCKSTEP_MACHINE"] =
          concat("m", rank * std::min(machines, options.count) / options.count);
    }
    if (!options.gpu) process.set_environment["CUDA_VISIBLE_DEVICES"] = "";
    for (const auto& [name, value] : options.environment) process.set_environment[name] = value;
    ranks.emplace_back(process);
  }

  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(options.timeout_seconds);
  bool failed = false;
  for (int rank = 0; rank < options.count; ++rank) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    // After the first failure the others only get a moment: they may wait for it forever.
    const auto status = ranks[rank].wait_for(
        std::max(failed ? std::chrono::milliseconds(3000) : left, std::chrono::milliseconds(1)));
    const bool must_die = std::ranges::find(options.killed, rank) != options.killed.end();
    const bool as_expected = status && (must_die ? status->signal == SIGKILL : status->success());
    if (as_expected) continue;
    failed = true;
    ADD_FAILURE() << "rank " << rank << ": "
                  << (status ? status->describe() : "did not end in time") << "\n"
                  << read_text(folder / concat("rank_", rank, ".log"));
  }
}

}  // namespace lockstep::testing
