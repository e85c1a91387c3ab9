#include "core/captured_program.h"

#include <csignal>
#include <string>

#include <gtest/gtest.h>

#include "core/exec_process.h"

using lockstep::CapturedProgram;
using lockstep::run_captured;
using std::chrono::seconds;

TEST(CapturedProgram, all_that_it_says_and_how_it_ends) {
  const CapturedProgram result =
      run_captured({.argv = {"sh", "-c", "cat; echo out; echo $NEW$OLD >&2; exit 3"},
                    .limit = seconds(30),
                    .set_environment = {{"NEW", "new"}},
                    .unset_environment = {"OLD"}});
  EXPECT_TRUE(result.in_time);
  EXPECT_EQ(result.status.exit_code, 3);
  EXPECT_EQ(result.out, "out\n");
  EXPECT_EQ(result.err, "new\n");
}

TEST(CapturedProgram, one_that_takes_too_long_is_asked_and_then_killed) {
  // On a busy machine it may not even have begun.
  CapturedProgram killed;
  for (std::chrono::milliseconds limit(300); killed.out.empty() && limit < seconds(60);
       limit *= 2) {
    killed = run_captured({.argv = {"sh", "-c", "echo begun; exec sleep 600"}, .limit = limit});
    EXPECT_FALSE(killed.in_time);
    EXPECT_EQ(killed.status.signal, SIGKILL);
  }
  EXPECT_EQ(killed.out, "begun\n");
  const CapturedProgram asked = run_captured(
      {.argv = {"sleep", "600"}, .limit = std::chrono::milliseconds(1), .grace = seconds(30)});
  EXPECT_EQ(asked.status.signal, SIGTERM);
}

TEST(CapturedProgram, what_it_leaves_in_the_background_is_not_awaited) {
  const CapturedProgram result =
      run_captured({.argv = {"sh", "-c", "sleep 600 & echo $!"}, .limit = seconds(30)});
  EXPECT_TRUE(result.in_time);
  ::kill(std::stoi(result.out), SIGKILL);
}

TEST(CapturedProgram, what_is_too_much_is_not_kept_and_what_is_not_there_is_named) {
  EXPECT_EQ(run_captured({.argv = {"echo", "hello"}, .limit = seconds(30), .most_bytes = 4}).out,
            "hell");
  EXPECT_THROW(run_captured({.argv = {"/no/such/program"}, .limit = seconds(30)}),
               lockstep::StartError);
}
