#pragma once

#include <functional>
#include <map>
#include <string>

/// Tests whose body runs in several processes.
///
///     RANKS_TEST(Broadcast, reaches_every_rank, 3) {
///       World world = init();
///       ...
///     }
///
/// The test starts a process for each rank, with the variables of a launcher; the store is in
/// the test's own process, so no port has to be guessed. A rank that fails, hangs or dies fails the
/// test, which prints what it wrote.
namespace lockstep::testing {

struct RanksOptions {
  int count = 2;
  /// Ranks that are expected to die of SIGKILL.
  std::vector<int> killed = {};
  std::map<std::string, std::string> environment = {};
  /// Ranks believe to be on so many machines, the first of them on the first. The variable
  /// LOCKSTEP_TEST_MACHINES says it for tests that do not.
  int machines = 1;
  bool gpu = false;  // let the ranks see GPUs
  int timeout_seconds = 90;
};

void run_in_ranks(const RanksOptions& options, const std::function<void()>& body);

/// In a rank: its number.
int this_rank();

/// Ends this process at once, as the kernel's out-of-memory killer would.
[[noreturn]] void kill_this_process();

}  // namespace lockstep::testing

#define RANKS_TEST_WITH(suite, name, ...)                                            \
  static void suite##_##name##_in_a_rank();                                          \
  TEST(suite, name) {                                                                \
    ::lockstep::testing::run_in_ranks(::lockstep::testing::RanksOptions __VA_ARGS__, \
                                      suite##_##name##_in_a_rank);                   \
  }                                                                                  \
  static void suite##_##name##_in_a_rank()

#define RANKS_TEST(suite, name, ranks) RANKS_TEST_WITH(suite, name, {.count = ranks})
