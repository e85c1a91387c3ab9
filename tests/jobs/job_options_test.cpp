#include "jobs/job_options.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::InvalidArgument;
using lockstep::job_help;
using lockstep::JobKind;
using lockstep::JobOptions;
using lockstep::parse_job_options;

namespace {

std::string reason(JobKind kind, const std::vector<std::string>& words) {
  try {
    parse_job_options(kind, words);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& text, std::string_view what) {
  return text.find(what) != std::string::npos;
}

}  // namespace

TEST(JobOptions, options_come_before_the_job) {
  const JobOptions options =
      parse_job_options(JobKind::sbatch, {"--nodes", "4", "--time=2:00:00", "--module", "cuda",
                                          "--module=gcc", "--env", "A=b=c", "--",
                                          "--nproc-per-node", "8", "src/train.py", "--nodes", "3"});
  EXPECT_EQ(options.nodes, 4);
  EXPECT_EQ(options.time, "2:00:00");
  EXPECT_EQ(options.modules, (std::vector<std::string>{"cuda", "gcc"}));
  EXPECT_EQ(options.environment[0], std::pair(std::string("A"), std::string("b=c")));
  EXPECT_EQ(options.run_words,
            (std::vector<std::string>{"--nproc-per-node", "8", "src/train.py", "--nodes", "3"}));
  EXPECT_EQ(options.job_name, "train");
  EXPECT_TRUE(options.requeue);
}

TEST(JobOptions, the_job_must_be_there_and_make_sense) {
  EXPECT_TRUE(says(reason(JobKind::sbatch, {"--nodes", "2"}), "after --"));
  EXPECT_TRUE(says(reason(JobKind::sbatch, {"train.py"}), "after --"));
  EXPECT_TRUE(says(reason(JobKind::sbatch, {"--", "--nproc-per-node", "many", "x"}), "many"));
}

TEST(JobOptions, where_nodes_meet_is_not_the_users_to_say) {
  EXPECT_TRUE(says(reason(JobKind::qsub, {"--", "--nnodes", "2", "x"}), "--nnodes"));
  EXPECT_TRUE(
      says(reason(JobKind::qsub, {"--", "--rdzv-endpoint", "a:1", "x"}), "--rdzv-endpoint"));
}

TEST(JobOptions, what_a_scheduler_does_not_know_is_refused) {
  EXPECT_TRUE(says(reason(JobKind::sbatch, {"--mail-type=END", "--", "x"}), "--sbatch-arg"));
  EXPECT_TRUE(says(reason(JobKind::manifest, {"--partition=a", "--", "x"}), "no option"));
  EXPECT_TRUE(
      says(reason(JobKind::sbatch, {"--job-name=a\n#SBATCH --nodes=9", "--", "x"}), "line break"));
  EXPECT_TRUE(says(reason(JobKind::sbatch, {"--env", "no-name=3", "--", "x"}), "NAME=VALUE"));
  EXPECT_TRUE(says(reason(JobKind::sbatch, {"--nodes", "--", "x"}), "needs a value"));
  EXPECT_TRUE(says(reason(JobKind::sbatch, {"--print=1", "--", "x"}), "takes no value"));
  EXPECT_TRUE(says(reason(JobKind::sbatch, {"--warn=3601", "--", "x"}), "3600 at most"));
}

TEST(JobOptions, help_lists_what_the_command_has) {
  EXPECT_TRUE(says(job_help(JobKind::sbatch), "--partition NAME"));
  EXPECT_FALSE(says(job_help(JobKind::manifest), "--partition"));
  EXPECT_TRUE(says(job_help(JobKind::manifest), "--image IMAGE"));
  EXPECT_TRUE(parse_job_options(JobKind::qsub, {"--help"}).help);
}
