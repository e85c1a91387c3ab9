#include "launch/run_directory.h"

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"

using lockstep::Environment;
using lockstep::find_live_jobs;
using lockstep::InvalidArgument;
using lockstep::JobRecord;
using lockstep::RunDirectory;
using lockstep::SystemError;
using lockstep::testing::read_text;
using lockstep::testing::TemporaryFolder;

namespace fs = std::filesystem;

namespace {

class RunDirectoryTest : public ::testing::Test {
 protected:
  Environment environment() const { return Environment({{"TMPDIR", folder_.path().string()}}); }
  std::string place() const { return folder_ / ("lockstep-" + std::to_string(::getuid())); }
  std::unique_ptr<RunDirectory> make(std::optional<std::string> path = std::nullopt) const {
    return std::make_unique<RunDirectory>(
        lockstep::RunDirectoryOptions{.path = std::move(path), .run_id = "job/7", .host = "node1"},
        environment());
  }
  // The jobs below our own temporary place; others may run on this machine.
  std::vector<lockstep::LiveJob> live_jobs() const {
    auto jobs = find_live_jobs(environment());
    std::erase_if(jobs,
                  [&](const auto& job) { return !job.path.starts_with(folder_.path().string()); });
    return jobs;
  }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(place()), {}));
  }

  TemporaryFolder folder_;
};

JobRecord record() {
  return {.run_id = "job/7",
          .host = "node1",
          .pid = ::getpid(),
          .start_time = lockstep::process_start_time(::getpid()).value(),
          .started = "2026-01-02T03:04:05.678+00:00",
          .command = {"train.py", "--x"},
          .epoch = 2,
          .node_rank = 0,
          .world_size = 2,
          .log_directory = "logs",
          .workers = {{.rank = 1, .local_rank = 1, .pid = 12, .start_time = 34}}};
}

mode_t mode_of(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_mode & 0777 : 0;
}

}  // namespace

TEST_F(RunDirectoryTest, lies_in_the_temporary_place_and_is_ours_alone) {
  const auto run = make();
  EXPECT_TRUE(std::regex_match(run->path(), std::regex(place() + "/job_7_[a-z0-9]{8}")))
      << run->path();
  EXPECT_EQ(mode_of(run->path()), 0700u);
  EXPECT_EQ(mode_of(place()), 0700u);
  EXPECT_EQ(run->socket_path(), run->path() + "/agent.sock");
}

TEST_F(RunDirectoryTest, a_place_that_is_a_trap_is_refused) {
  fs::create_directories(folder_ / "elsewhere");
  fs::create_directory_symlink(folder_ / "elsewhere", place());
  EXPECT_THROW(make(), SystemError);
  fs::remove(place());
  fs::create_directory(place());
  fs::permissions(place(), fs::perms(0777));
  EXPECT_THROW(make(), SystemError);
  fs::permissions(place(), fs::perms(0700));
  EXPECT_NO_THROW(make());
}

TEST_F(RunDirectoryTest, the_users_folder_is_used_as_it_is) {
  const auto run = make(folder_ / "runs/one");
  EXPECT_EQ(run->path(), folder_ / "runs/one");
  EXPECT_EQ(make(folder_ / "runs/two/.")->path(), folder_ / "runs/two");
  std::ofstream(folder_ / "file") << "x";
  try {
    make(folder_ / "file");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("--run-dir: '")) << error.what();
  }
}

TEST_F(RunDirectoryTest, agents_that_share_a_folder_do_not_meet) {
  auto first = make(folder_ / "shared");
  const auto second = make(folder_ / "shared");
  const auto third = make(folder_ / "shared");
  EXPECT_EQ(second->path(), folder_ / "shared/node_node1");
  EXPECT_EQ(third->path(), folder_ / "shared/node_node1.2");
  first.reset();
  EXPECT_EQ(make(folder_ / "shared")->path(), folder_ / "shared");
}

TEST_F(RunDirectoryTest, a_socket_path_that_is_too_long_moves_to_a_short_place) {
  const std::string deep = folder_ / (std::string(60, 'a') + "/" + std::string(60, 'b'));
  std::string socket;
  {
    const auto run = make(deep);
    socket = run->socket_path();
    EXPECT_LT(socket.size(), sizeof(sockaddr_un::sun_path));
    EXPECT_TRUE(socket.starts_with(place() + "/s_")) << socket;
    EXPECT_EQ(mode_of(fs::path(socket).parent_path()), 0700u);
  }
  EXPECT_FALSE(fs::exists(fs::path(socket).parent_path()));
}

TEST_F(RunDirectoryTest, job_json_holds_the_record) {
  const auto run = make();
  run->write_job(record());
  EXPECT_EQ(lockstep::job_record_from_json(read_text(run->path() + "/job.json")), record());
  JobRecord later = record();
  later.epoch = 3;
  run->write_job(later);
  EXPECT_EQ(lockstep::job_record_from_json(read_text(run->path() + "/job.json")), later);
  EXPECT_EQ(lockstep::job_record_from_json("{"), std::nullopt);
  EXPECT_EQ(lockstep::job_record_from_json("[]"), std::nullopt);
}

TEST_F(RunDirectoryTest, running_jobs_are_found_wherever_their_folders_are) {
  const auto temporary = make();
  const auto chosen = make(folder_ / "chosen");
  JobRecord later = record();
  later.started = "2026-01-02T03:04:06.000+00:00";
  temporary->write_job(later);
  chosen->write_job(record());
  const auto jobs = live_jobs();
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].path, chosen->path());
  EXPECT_EQ(jobs[0].record, record());
  EXPECT_EQ(jobs[1].path, temporary->path());
}

TEST_F(RunDirectoryTest, what_ended_jobs_left_is_cleared_away_unless_it_is_of_worth) {
  std::string worthless, worth;
  {
    const auto one = make();
    const auto two = make();
    const auto three = make(folder_ / "chosen");
    for (const auto* run : {one.get(), two.get(), three.get()}) run->write_job(record());
    fs::create_directories(one->path() + "/logs/attempt_1/0");
    std::ofstream(one->path() + "/logs/attempt_1/0/stderr.log");  // empty
    fs::create_directories(two->path() + "/logs/attempt_1/0");
    std::ofstream(two->path() + "/logs/attempt_1/0/stderr.log") << "help";
    worthless = one->path();
    worth = two->path();
  }
  EXPECT_TRUE(fs::exists(worthless));
  EXPECT_TRUE(live_jobs().empty());
  EXPECT_FALSE(fs::exists(worthless));
  EXPECT_EQ(read_text(worth + "/logs/attempt_1/0/stderr.log"), "help");
  EXPECT_TRUE(fs::exists(folder_ / "chosen/job.json"));
  EXPECT_EQ(entries(), 1u);
}

TEST_F(RunDirectoryTest, success_leaves_nothing_behind_but_what_is_of_worth) {
  const auto failed = make();
  EXPECT_FALSE(failed->finish(false));
  EXPECT_TRUE(fs::exists(failed->path()));
  const auto clean = make();
  clean->write_job(record());
  std::ofstream(clean->events_path()) << "{}\n";
  EXPECT_TRUE(clean->finish(true));
  EXPECT_FALSE(fs::exists(clean->path()));
  const auto with_metrics = make();
  fs::create_directories(with_metrics->path() + "/metrics");
  std::ofstream(with_metrics->path() + "/metrics/rank_0.jsonl") << "{}\n";
  EXPECT_FALSE(with_metrics->finish(true));
  const auto chosen = make(folder_ / "chosen");
  EXPECT_FALSE(chosen->finish(true));
  EXPECT_TRUE(fs::exists(chosen->path()));
}

TEST(ProcessStartTime, tells_processes_apart_and_the_dead_have_none) {
  const auto ours = lockstep::process_start_time(::getpid());
  const auto first = lockstep::process_start_time(1);
  ASSERT_TRUE(ours && first);
  EXPECT_GE(*ours, *first);
  EXPECT_EQ(lockstep::process_start_time(-1), std::nullopt);
}
