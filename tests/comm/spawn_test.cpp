#include "lockstep/spawn.h"

#include <gtest/gtest.h>

#include "core/subprocess.h"
#include "tests/core/temporary_folder.h"

using namespace lockstep;
using lockstep::testing::TemporaryFolder;

namespace {

struct Outcome {
  std::optional<ExitStatus> status;
  std::string out, err;
};

Outcome run_helper(const std::string& mode) {
  const TemporaryFolder folder;
  Subprocess program({.argv = {LOCKSTEP_SPAWN_HELPER, mode},
                      .set_environment = {{"CUDA_VISIBLE_DEVICES", ""}},
                      .unset_environment = {},
                      .stdout_path = folder / "out",
                      .stderr_path = folder / "err"});
  const auto status = program.wait_for(std::chrono::seconds(60));
  return {.status = status,
          .out = lockstep::testing::read_text(folder / "out"),
          .err = lockstep::testing::read_text(folder / "err")};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(Spawn, runs_a_function_in_every_rank_and_can_be_called_again) {
  const Outcome outcome = run_helper("twice");
  ASSERT_TRUE(outcome.status && outcome.status->success()) << outcome.err;
  EXPECT_EQ(outcome.out, "a0 a1 b0 b1 b2 done\n");
}

TEST(Spawn, stops_the_others_and_tells_the_error_of_the_rank_that_failed) {
  const Outcome outcome = run_helper("throw");
  ASSERT_TRUE(outcome.status) << "did not end";
  EXPECT_EQ(outcome.status->exit_code, 1);
  EXPECT_TRUE(has(outcome.err,
                  "SpawnFailed: spawn: rank 1 ended with exit code 2: "
                  "InvalidArgument: rank 1 has had enough"))
      << outcome.err;
}

TEST(Spawn, tells_the_signal_that_ended_a_rank) {
  const Outcome outcome = run_helper("kill");
  ASSERT_TRUE(outcome.status) << "did not end";
  EXPECT_TRUE(has(outcome.err, "rank 0 ended with signal 9 (SIGKILL)")) << outcome.err;
}

TEST(Spawn, refuses_to_be_nested_and_to_start_nothing) {
  EXPECT_TRUE(has(run_helper("nested").err, "called inside a spawned process"));
  const Outcome zero = run_helper("zero");
  EXPECT_EQ(zero.status->exit_code, 2);
  EXPECT_TRUE(has(zero.err, "nprocs is 0")) << zero.err;
}
