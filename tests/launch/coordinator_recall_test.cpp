#include <csignal>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "launch/coordinator_log.h"
#include "tests/launch/state_machine_drivers.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Phase = Coordinator::Phase;

/// What the coordinator of `before` would leave if it died now, as it is read again.
CoordinatorRecord left_by(CoordinatorDriver& before) {
  return coordinator_record_from_json(to_json(before.coordinator().record())).value();
}

/// A coordinator after one that died; its own node comes as "c", a new process.
CoordinatorDriver after(CoordinatorDriver& before, bool host_is_gone) {
  CoordinatorDriver driver(before.options().terms, before.options().last_call);
  driver.options().record = left_by(before);
  driver.options().former_host_is_gone = host_is_gone;
  return driver;
}

struct Folder {
  std::string path = std::filesystem::temp_directory_path() / "coordinator_log_XXXXXX";
  Folder() { EXPECT_NE(::mkdtemp(path.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file() const { return path + "/coordinator.log"; }
};

}  // namespace

TEST(CoordinatorRecall, workers_go_on_when_all_nodes_come_to_the_new_coordinator) {
  CoordinatorDriver before(fixed(2, 1));
  before.start({"a", "b"});
  CoordinatorDriver driver = after(before, /*host_is_gone=*/false);
  driver.rejoin("b", 12, NodePhase::running, 1);
  driver.rejoin("a", 11, NodePhase::running, 1);
  EXPECT_EQ(driver.phase(), Phase::running);
  EXPECT_EQ(driver.coordinator().epoch(), 1u);
  EXPECT_FALSE(driver.last<Stop>(11));
  EXPECT_FALSE(driver.last<Prepare>(12));
  driver.rejoin("a", 13, NodePhase::succeeded, 1);
  driver.rejoin("b", 14, NodePhase::succeeded, 1);
  EXPECT_EQ(driver.last<Finish>(14).value().code, 0);
}

TEST(CoordinatorRecall, a_warning_before_it_is_told_with_the_time_that_is_left) {
  CoordinatorDriver before(fixed(2, 1));
  before.start({"a", "b"});
  const auto version = before.coordinator().record_version();
  before.tell("a", PassSignal{.signal = SIGUSR1, .time_left = 60s});
  EXPECT_GT(before.coordinator().record_version(), version);
  before.pass(10s, {"a", "b"});
  CoordinatorDriver driver = after(before, /*host_is_gone=*/false);
  driver.coordinator();
  driver.pass(2s);
  driver.rejoin("b", 12, NodePhase::running, 1);
  const PassSignal rest{.signal = 0, .time_left = 48s};
  EXPECT_EQ(driver.last<PassSignal>(12), rest);
}

TEST(CoordinatorRecall, a_node_that_died_with_the_coordinator_costs_a_restart) {
  CoordinatorDriver before(fixed(2, 1));
  before.start({"a", "b"});
  CoordinatorDriver driver = after(before, /*host_is_gone=*/true);
  driver.join("c");
  EXPECT_EQ(driver.phase(), Phase::gathering);
  driver.rejoin("b", 12, NodePhase::running, 1);
  EXPECT_EQ(driver.last<Stop>(12).value().epoch, 1u);
  driver.tell(12, Stopped{1, {1}});
  EXPECT_EQ(driver.last<Prepare>(12).value().membership.epoch, 2u);
  EXPECT_EQ(driver.last<Prepare>(12).value().membership.restart_count, 1);
}

TEST(CoordinatorRecall, without_restarts_the_job_ends_as_for_any_node) {
  CoordinatorDriver before(fixed(2));
  before.start({"a", "b"});
  CoordinatorDriver driver = after(before, /*host_is_gone=*/true);
  driver.rejoin("b", 12, NodePhase::running, 1);
  driver.tell(12, Stopped{1, {1}});
  EXPECT_EQ(driver.last<Finish>(12).value().code, 1);
  EXPECT_NE(driver.last<Finish>(12).value().reason.find("node a was lost"), std::string::npos);
}

TEST(CoordinatorRecall, a_node_that_does_not_come_is_lost_after_the_limit) {
  CoordinatorDriver before(fixed(3, 1));
  before.start({"a", "b", "c"});
  CoordinatorDriver driver = after(before, /*host_is_gone=*/false);
  driver.rejoin("a", 1, NodePhase::running, 1);
  driver.rejoin("b", 2, NodePhase::running, 1);
  driver.pass(4s, {"a", "b"});
  EXPECT_EQ(driver.phase(), Phase::running);
  driver.pass(3s, {"a", "b"});
  EXPECT_EQ(driver.phase(), Phase::stopping);
  EXPECT_EQ(driver.coordinator().restarts(), 1);
}

TEST(CoordinatorRecall, a_record_of_which_no_node_is_left_only_counts_epochs) {
  CoordinatorDriver before(fixed(2, 1));
  before.start({"a", "b"});
  CoordinatorDriver driver = after(before, /*host_is_gone=*/true);
  driver.join("c");
  driver.join("d");
  EXPECT_EQ(driver.phase(), Phase::gathering);
  driver.pass(6s, {"c", "d"});
  EXPECT_EQ(driver.last<Prepare>("c").value().membership.epoch, 2u);
  EXPECT_EQ(driver.last<Prepare>("c").value().membership.restart_count, 0);
}

TEST(CoordinatorRecall, a_node_that_knows_a_later_epoch_begins_another_one) {
  CoordinatorDriver before(fixed(2, 3));
  before.start({"a", "b"});
  CoordinatorDriver driver = after(before, /*host_is_gone=*/false);
  driver.rejoin("a", 1, NodePhase::running, 2);
  EXPECT_EQ(driver.last<Stop>(1).value().epoch, 2u);
  driver.tell(1, Stopped{2, {0}});
  driver.rejoin("b", 2, NodePhase::idle, 2);
  EXPECT_EQ(driver.last<Prepare>(2).value().membership.epoch, 3u);
}

TEST(CoordinatorRecall, an_epoch_that_was_being_prepared_is_prepared_on) {
  CoordinatorDriver before(fixed(2));
  before.join("a");
  before.join("b");
  CoordinatorDriver driver = after(before, /*host_is_gone=*/false);
  driver.rejoin("b", 2, NodePhase::idle, 0);  // it has not heard of it yet
  ASSERT_TRUE(driver.last<Prepare>(2));
  EXPECT_EQ(driver.last<Prepare>(2)->membership, before.last<Prepare>("b")->membership);
  Join join = driver.join_of(node_info("a"));
  join.phase = NodePhase::prepared;
  join.epoch = 1;
  join.ready = true;
  join.store_port = 29500;
  driver.tell(1, join);
  driver.tell(2, Ready{1, 0});
  EXPECT_EQ(driver.last<Start>(2).value().master_port, 29500);
}

TEST(CoordinatorRecall, a_stop_goes_on_to_the_end_that_was_decided) {
  CoordinatorDriver before(fixed(2));
  before.start({"a", "b"});
  before.tell("b", before.failure(1, 7));
  EXPECT_EQ(before.phase(), Phase::stopping);
  CoordinatorDriver driver = after(before, /*host_is_gone=*/false);
  driver.rejoin("a", 1, NodePhase::running, 1);
  EXPECT_TRUE(driver.last<Stop>(1));
  driver.rejoin("b", 2, NodePhase::stopping, 1, {before.failure(1, 7)});
  driver.tell(1, Stopped{1, {0}});
  driver.tell(2, Stopped{1, {}});
  EXPECT_EQ(driver.last<Finish>(1).value().code, 7);
}

TEST(CoordinatorRecall, who_was_to_hear_the_end_hears_it) {
  CoordinatorDriver before(fixed(2));
  before.start({"a", "b"});
  before.tell("a", WorkersSucceeded{1});
  before.tell("b", WorkersSucceeded{1});
  ASSERT_EQ(before.phase(), Phase::finished);
  CoordinatorDriver driver = after(before, /*host_is_gone=*/false);
  driver.rejoin("b", 2, NodePhase::succeeded, 1);
  EXPECT_EQ(driver.last<Finish>(2).value().code, 0);
}

TEST(CoordinatorRecall, who_was_lost_before_the_end_hears_it_and_new_nodes_begin_anew) {
  CoordinatorDriver before(fixed(2));
  before.start({"a", "b"});
  before.tell("a", WorkersSucceeded{1});
  before.tell("b", WorkersSucceeded{1});
  CoordinatorDriver late = after(before, /*host_is_gone=*/false);
  late.rejoin("c", 3, NodePhase::idle, 1);
  EXPECT_EQ(late.last<Finish>(3).value().code, 0);
  CoordinatorDriver anew = after(before, /*host_is_gone=*/false);
  anew.join("c");
  anew.join("d");
  EXPECT_EQ(anew.last<Prepare>("c").value().membership.epoch, 2u);
}

TEST(CoordinatorRecall, with_min_world_the_others_live_on) {
  JobTerms terms = fixed(3, 0);
  terms.min_world = 1;
  terms.max_replacements = 5;
  CoordinatorDriver before(terms);
  before.start({"a", "b", "c"});
  const auto recovers = [](CoordinatorDriver& driver, LinkId link, int rank) {
    driver.tell(link, RankRecovers{.epoch = 1, .rank = rank, .step = 3});
  };
  for (const int rank : {0, 1, 2}) recovers(before, static_cast<LinkId>(rank + 1), rank);
  CoordinatorDriver driver = after(before, /*host_is_gone=*/false);
  driver.rejoin("a", 1, NodePhase::running, 1);
  driver.rejoin("b", 2, NodePhase::running, 1);
  recovers(driver, 1, 0);
  recovers(driver, 2, 1);
  driver.pass(7s, {"a", "b"});
  ASSERT_TRUE(driver.last<Prepare>(1));
  EXPECT_TRUE(driver.last<Prepare>(1)->carries_over);
  EXPECT_EQ(driver.last<Prepare>(1)->membership.left_out, std::vector<int>{2});

  // One that knows only of the preparation, after one that has started it: the work is done.
  CoordinatorDriver last = after(driver, /*host_is_gone=*/false);
  for (const std::string id : {"a", "b"}) {
    EXPECT_NE(last.phase(), Phase::finished);
    Join join = last.join_of(node_info(id));
    join.phase = NodePhase::succeeded;
    join.epoch = 2;
    join.ready = true;
    last.tell(id == "a" ? 1 : 2, join);
  }
  ASSERT_TRUE(last.last<Finish>(1));
  EXPECT_EQ(last.last<Finish>(1)->code, 0);
}

TEST(CoordinatorRecord, survives_its_text_and_nothing_else_is_one) {
  CoordinatorDriver before(fixed(2, 4));
  before.start({"a", "b"});
  const CoordinatorRecord record = before.coordinator().record();
  EXPECT_EQ(left_by(before), record);
  EXPECT_EQ(record.host_id, "a");
  const std::string text = to_json(record);
  EXPECT_FALSE(coordinator_record_from_json(text.substr(0, text.size() / 2)));
  EXPECT_FALSE(coordinator_record_from_json("{}"));
  EXPECT_FALSE(coordinator_record_from_json("[1]"));
  CoordinatorRecord wrong = record;
  wrong.left_out = {2};
  EXPECT_FALSE(coordinator_record_from_json(to_json(wrong)));
  wrong = record;
  wrong.participants.pop_back();
  EXPECT_FALSE(coordinator_record_from_json(to_json(wrong)));
}

TEST(CoordinatorLog, the_last_whole_record_counts) {
  CoordinatorDriver before(fixed(2, 4));
  before.start({"a", "b"});
  CoordinatorRecord record = before.coordinator().record();
  const Folder folder;
  {
    CoordinatorLog log(folder.file(), "job");
    EXPECT_FALSE(log.last());
    log.append(record);
    record.epoch = 2;
    log.append(record);
  }
  std::ofstream(folder.file(), std::ios::app) << to_json(record).substr(0, 40);  // it was killed
  {
    CoordinatorLog log(folder.file(), "job");
    EXPECT_EQ(log.last().value().epoch, 2u);
    record.epoch = 3;
    log.append(record);
  }
  EXPECT_EQ(CoordinatorLog(folder.file(), "job").last().value().epoch, 3u);
}

TEST(CoordinatorLog, what_another_job_or_one_that_has_ended_left_is_removed) {
  CoordinatorDriver before(fixed(1));
  before.start({"a"});
  const Folder folder;
  CoordinatorLog(folder.file(), "job").append(before.coordinator().record());
  EXPECT_TRUE(CoordinatorLog(folder.file(), "job").last());
  EXPECT_FALSE(CoordinatorLog(folder.file(), "another").last());
  before.tell("a", WorkersSucceeded{1});
  CoordinatorLog(folder.file(), "job").append(before.coordinator().record());
  EXPECT_FALSE(CoordinatorLog(folder.file(), "job").last());
  EXPECT_EQ(std::filesystem::file_size(folder.file()), 0u);
}

}  // namespace lockstep
