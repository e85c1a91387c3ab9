#include "jobs/script_parts.h"

#include <gtest/gtest.h>

using lockstep::JobKind;
using lockstep::JobOptions;
using lockstep::run_command_of;
using lockstep::shell_command;

TEST(ScriptParts, long_commands_are_broken_between_words) {
  const std::string word(60, 'x');
  EXPECT_EQ(shell_command({word, word}), word + " \\\n  " + word);
}

TEST(ScriptParts, what_the_user_says_comes_last_and_counts) {
  JobOptions options;
  options.kind = JobKind::qsub;
  options.lockstep = "/opt/lockstep";
  options.run_words = {"--nproc-per-node=4", "train.py"};
  EXPECT_EQ(run_command_of(options),
            (std::vector<std::string>{"/opt/lockstep", "run", "--nnodes=auto", "--nproc-per-node=1",
                                      "--nproc-per-node=4", "train.py"}));
}
