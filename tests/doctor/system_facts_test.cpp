#include "doctor/system_facts.h"

#include <gtest/gtest.h>
#include <fstream>

#include "doctor/cgroup_limits.h"
#include "doctor/shared_folder.h"
#include "finding_support.h"
#include "tests/core/temporary_folder.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kGibi = std::uint64_t{1} << 30;

SystemFacts healthy_machine() {
  SystemFacts facts;
  facts.lockstep_version = "1.2.3";
  facts.wall_seconds = 1800000000;
  facts.open_files = 65536;
  facts.disks = {{.use = "run directories",
                  .path = "/scratch",
                  .total_bytes = 100 * kGibi,
                  .free_bytes = 50 * kGibi,
                  .free_files = 100000,
                  .total_files = 200000}};
  facts.shared_memory = {.use = "shared memory",
                         .path = "/dev/shm",
                         .total_bytes = 64 * kGibi,
                         .free_bytes = 64 * kGibi};
  facts.memory_bytes = 128 * kGibi;
  facts.cpus = 16;
  facts.core_bytes = 0;
  facts.core_pattern = "core";
  return facts;
}

Judged judge(const SystemFacts& facts, const SystemQuestions& questions = {}) {
  Judged judged;
  judge_system(facts, questions, judged.list());
  EXPECT_TRUE(judged.every_problem_has_a_cure());
  return judged;
}

TEST(JudgeSystem, a_healthy_machine_has_nothing_but_good_findings) {
  const Judged judged = judge(healthy_machine());
  for (const Finding& each : judged.all()) {
    EXPECT_EQ(each.level, FindingLevel::ok) << each.what;
  }
}

TEST(JudgeSystem, a_clock_that_nobody_keeps_is_a_warning_and_one_at_1970_an_error) {
  SystemFacts facts = healthy_machine();
  facts.clock_synchronized = false;
  EXPECT_EQ(judge(facts).worst("clock"), FindingLevel::warning);
  facts.wall_seconds = 12;
  EXPECT_EQ(judge(facts).worst("clock"), FindingLevel::error);
}

TEST(JudgeSystem, few_open_files_are_raised_by_ulimit_as_far_as_the_hard_limit_permits) {
  SystemFacts facts = healthy_machine();
  facts.open_files = 1024;
  facts.most_open_files = 8192;
  EXPECT_NE(judge(facts).text("limits").find("ulimit -n 8192"), std::string::npos);
  facts.most_open_files = 1024;
  EXPECT_NE(judge(facts).text("limits").find("limits.d"), std::string::npos);
}

TEST(JudgeSystem, locked_memory_matters_with_infiniband_only) {
  SystemFacts facts = healthy_machine();
  facts.locked_bytes = 64 << 10;
  EXPECT_EQ(judge(facts).worst("limits"), FindingLevel::ok);
  EXPECT_EQ(judge(facts, {.has_infiniband = true}).worst("limits"), FindingLevel::error);
}

TEST(JudgeSystem, shared_memory_as_docker_makes_it_is_a_warning) {
  SystemFacts facts = healthy_machine();
  facts.shared_memory.total_bytes = facts.shared_memory.free_bytes = 64 << 20;
  const Judged judged = judge(facts);
  EXPECT_EQ(judged.worst("shared memory"), FindingLevel::warning);
  EXPECT_NE(judged.text("shared memory").find("--shm-size"), std::string::npos);
  facts.shared_memory.free_bytes = 1 << 20;
  EXPECT_EQ(judge(facts).worst("shared memory"), FindingLevel::error);
}

TEST(JudgeSystem, a_full_disk_is_an_error_in_bytes_and_in_files) {
  SystemFacts facts = healthy_machine();
  facts.disks[0].free_bytes = 500 << 20;
  EXPECT_EQ(judge(facts).worst("disk"), FindingLevel::warning);
  facts.disks[0].free_bytes = 5 << 20;
  EXPECT_EQ(judge(facts).worst("disk"), FindingLevel::error);
  facts = healthy_machine();
  facts.disks[0].free_files = 3;
  EXPECT_EQ(judge(facts).worst("disk"), FindingLevel::error);
  facts.disks[0].total_files = facts.disks[0].free_files = 0;  // btrfs does not count
  EXPECT_EQ(judge(facts).worst("disk"), FindingLevel::ok);
  facts.disks[0].problem = "Permission denied";
  EXPECT_NE(judge(facts).text("disk").find("Permission denied"), std::string::npos);
}

TEST(JudgeSystem, limits_of_a_cgroup_are_named) {
  SystemFacts facts = healthy_machine();
  facts.memory_limit = kGibi;
  facts.cpu_limit = 2.5;
  const Judged judged = judge(facts);
  EXPECT_EQ(judged.worst("memory"), FindingLevel::warning);
  EXPECT_NE(judged.text("processors").find("OMP_NUM_THREADS=2"), std::string::npos);
}

TEST(JudgeSystem, more_threads_than_processors_are_a_warning) {
  SystemFacts facts = healthy_machine();
  facts.omp_num_threads = "8";
  EXPECT_EQ(judge(facts, {.workers = 2}).worst("threads"), FindingLevel::ok);
  EXPECT_NE(judge(facts, {.workers = 4}).text("threads").find("OMP_NUM_THREADS=4"),
            std::string::npos);
  facts.omp_num_threads = "many";
  EXPECT_EQ(judge(facts).worst("threads"), FindingLevel::error);
}

TEST(JudgeSystem, a_missing_openssl_matters_on_several_nodes) {
  SystemFacts facts = healthy_machine();
  facts.openssl_problem = "libcrypto is not installed";
  EXPECT_EQ(judge(facts).worst("openssl"), FindingLevel::note);
  EXPECT_EQ(judge(facts, {.several_nodes = true}).worst("openssl"), FindingLevel::error);
}

TEST(JudgeSystem, tracing_that_is_forbidden_and_large_cores_are_notes) {
  SystemFacts facts = healthy_machine();
  facts.ptrace_scope = 1;
  facts.core_bytes.reset();
  const Judged judged = judge(facts);
  EXPECT_EQ(judged.worst("stacks"), FindingLevel::note);
  EXPECT_EQ(judged.worst("cores"), FindingLevel::note);
  facts.may_trace_all = true;
  facts.core_pattern = "|/usr/lib/systemd/systemd-coredump";
  EXPECT_EQ(judge(facts).worst("stacks"), FindingLevel::ok);
  EXPECT_EQ(judge(facts).worst("cores"), FindingLevel::ok);
}

TEST(ReadSystem, this_machine_can_be_read) {
  const SystemFacts facts =
      read_system(Environment(Environment::Variables{{"TMPDIR", "/nowhere/at/all"}}), "1.2.3");
  EXPECT_FALSE(facts.kernel.empty());
  EXPECT_GT(facts.memory_bytes, 0u);
  EXPECT_GE(facts.cpus, 1);
  ASSERT_EQ(facts.disks.size(), 2u);
  EXPECT_FALSE(facts.disks[0].problem.empty());
}

class CgroupLimitsTest : public ::testing::Test {
 protected:
  void file(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_.path() / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  CgroupLimits read() const {
    return read_cgroup_limits(
        {.membership = folder_.path() / "membership", .root = folder_.path() / "root"});
  }

  testing::TemporaryFolder folder_;
};

TEST_F(CgroupLimitsTest, the_tightest_of_version_2_counts) {
  file("membership", "0::/slurm/job_7");
  file("root/slurm/memory.max", "8000");
  file("root/slurm/job_7/memory.max", "max");
  file("root/slurm/job_7/cpu.max", "150000 100000");
  EXPECT_EQ(read().memory_bytes, 8000u);
  EXPECT_EQ(read().cpus, 1.5);
}

TEST_F(CgroupLimitsTest, version_1_is_read_too) {
  file("membership", "4:memory:/a\n3:cpu,cpuacct:/b");
  file("root/memory/memory.limit_in_bytes", "9223372036854771712");
  file("root/memory/a/memory.limit_in_bytes", "4096");
  file("root/cpu/b/cpu.cfs_quota_us", "200000");
  file("root/cpu/b/cpu.cfs_period_us", "100000");
  EXPECT_EQ(read().memory_bytes, 4096u);
  EXPECT_EQ(read().cpus, 2.0);
}

TEST_F(CgroupLimitsTest, no_limit_is_none) {
  file("membership", "0::/\n3:cpu:/b");
  file("root/cpu.max", "max 100000");
  file("root/cpu/b/cpu.cfs_quota_us", "-1");
  file("root/cpu/b/cpu.cfs_period_us", "100000");
  EXPECT_EQ(read().memory_bytes, std::nullopt);
  EXPECT_EQ(read().cpus, std::nullopt);
}

TEST(SharedFolder, a_local_folder_keeps_its_promises_and_is_left_clean) {
  const testing::TemporaryFolder folder;
  const SharedFolderFacts facts = read_shared_folder(folder.path());
  EXPECT_EQ(facts.problem + facts.sync + facts.rename + facts.exclusive_create + facts.lock, "");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SharedFolder, broken_promises_are_errors_and_missing_locks_a_warning) {
  SharedFolderFacts facts{.path = "/shared", .kind = "nfs"};
  facts.rename = "the old name is still there";
  Judged judged;
  judge_shared_folder(facts, judged.list());
  EXPECT_EQ(judged.worst("shared folder"), FindingLevel::error);
  SharedFolderFacts unlocked{.path = "/shared", .kind = "lustre"};
  unlocked.lock = "Function not implemented";
  Judged second;
  judge_shared_folder(unlocked, second.list());
  EXPECT_EQ(second.worst("shared folder"), FindingLevel::warning);
  Judged third;
  judge_shared_folder(read_shared_folder("/nowhere/at/all"), third.list());
  EXPECT_EQ(third.worst("shared folder"), FindingLevel::error);
}

}  // namespace
}  // namespace lockstep
