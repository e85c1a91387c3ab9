#include <gtest/gtest.h>

#include <csignal>

#include "state_machine_drivers.h"

using namespace lockstep;
using namespace std::chrono_literals;
using Phase = Coordinator::Phase;

namespace {

JobTerms shrinking(int least, int replacements, int restarts = 0) {
  JobTerms terms = fixed(3, restarts);
  terms.max_replacements = replacements;
  terms.min_world = least;
  return terms;
}

const std::vector<std::string> kAll = {"a", "b", "c"};

// Nodes a, b and c with a worker each, at places 0, 1 and 2, that have the job's state.
struct ShrinkingJob : CoordinatorDriver {
  explicit ShrinkingJob(const JobTerms& terms) : CoordinatorDriver(terms) {
    options().rejoin_after = 8s;
    start(kAll);
    recover(0);
    forget_messages();
  }

  static int place_of(const std::string& id) { return static_cast<int>(link_of(id)) - 1; }
  void recovers(const std::string& id, std::int64_t step, bool able = true) {
    tell(id, RankRecovers{
                 .epoch = coordinator().epoch(), .rank = place_of(id), .step = step, .able = able});
  }
  /// All that are in.
  void recover(std::int64_t step) {
    for (const std::string& id : kAll) {
      if (last<Prepare>(id)->membership.is_in(place_of(id))) recovers(id, step);
    }
  }
  void kill(const std::string& id, int number = SIGKILL) {
    WorkerFailed failed = failure(place_of(id), 128 + number);
    failed.signal = number;
    tell(id, failed);
  }
  void cannot_start(const std::string& id) {
    WorkerFailed failed = failure(place_of(id), 127);
    failed.started = false;
    tell(id, failed);
  }
  /// The epoch that is being formed begins, and all go on.
  void go_on(std::int64_t step) {
    ready(kAll);
    recover(step);
  }
  void wait(Time time) { pass(time, kAll); }
  Prepare prepared() { return *last<Prepare>("a"); }
  bool is_reforming() { return coordinator().is_reforming(); }
  bool has_said(const std::string& text) { return said().find(text) != std::string::npos; }
};

}  // namespace

TEST(CoordinatorShrink, who_is_not_replaced_is_left_out_and_the_others_go_on) {
  ShrinkingJob job(shrinking(2, 0));
  job.kill("b");
  ASSERT_TRUE(job.is_reforming());
  for (const std::string& id : kAll) {
    ASSERT_TRUE(job.last<Prepare>(id));
    EXPECT_TRUE(job.last<Prepare>(id)->carries_over);
    EXPECT_TRUE(job.last<Prepare>(id)->replaced.empty());
    EXPECT_EQ(job.last<Prepare>(id)->membership.left_out, std::vector{1});
  }
  EXPECT_EQ(job.last<Prepare>("c")->membership.rank_of(2), 1);
  EXPECT_EQ(job.last<Prepare>("c")->membership.first_role_rank, 1);
  EXPECT_TRUE(
      job.has_said("rank 1 on b was ended by SIGKILL; none is replaced (--max-replacements 0): it "
                   "is left out, 2 of 3 ranks go on (--min-world 2)"));
  job.go_on(12);
  EXPECT_EQ(job.last<Recovered>("b")->step, 12);
  EXPECT_TRUE(job.has_said("2 of 3 ranks go on after step 12 (0.00 s after the loss)"));
  EXPECT_EQ(job.coordinator().replacements(), 0);
}

TEST(CoordinatorShrink, with_fewer_than_the_least_the_job_stops) {
  ShrinkingJob job(shrinking(2, 0));
  job.kill("b");
  job.go_on(12);
  job.kill("c");
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_TRUE(job.has_said("and fewer than 2 ranks would be left (--min-world)"));
}

TEST(CoordinatorShrink, the_last_one_with_the_jobs_state_cannot_be_left_out) {
  ShrinkingJob job(shrinking(1, 0));
  job.kill("b");
  job.go_on(12);
  job.kill("c");
  job.go_on(13);
  EXPECT_EQ(job.phase(), Phase::running);
  job.kill("a");
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_TRUE(job.has_said("no rank with the job's state is left"));
}

TEST(CoordinatorShrink, replacements_are_used_as_far_as_they_go) {
  ShrinkingJob job(shrinking(1, 1));
  job.tell("a", RanksRejected{1, {1, 2}, "their states differ"});
  EXPECT_EQ(job.prepared().replaced, std::vector{1});
  EXPECT_EQ(job.prepared().membership.left_out, std::vector{2});
  EXPECT_TRUE(
      job.has_said("a replacement starts (1 of 1), rank 2 is left out, 2 of 3 ranks go on"));
}

TEST(CoordinatorShrink, who_dies_again_and_again_while_it_joins_is_left_out) {
  ShrinkingJob job(shrinking(2, 100));
  for (int round = 0; round < 3; ++round) {
    job.kill("b");
    EXPECT_EQ(job.prepared().replaced, std::vector{1});
    job.ready(kAll);
  }
  job.kill("b");
  EXPECT_TRUE(job.prepared().replaced.empty());
  EXPECT_EQ(job.prepared().membership.left_out, std::vector{1});
  EXPECT_TRUE(job.has_said("; rank 1 died 4 times before all could go on: it is left out"));
}

TEST(CoordinatorShrink, who_dies_twice_at_one_step_is_left_out) {
  ShrinkingJob job(shrinking(2, 100));
  for (const int round : {1, 2}) {
    ASSERT_EQ(job.phase(), Phase::running) << round;
    job.kill("b", SIGSEGV);
    job.go_on(7);
  }
  ASSERT_TRUE(job.is_reforming());
  EXPECT_EQ(job.prepared().membership.left_out, std::vector{1});
  EXPECT_TRUE(job.has_said(
      "for rank 1 it was the second time at step 7: it is left out, 2 of 3 ranks go on"));
  job.go_on(7);
  EXPECT_TRUE(job.has_said("2 of 3 ranks go on after step 7"));
}

TEST(CoordinatorShrink, who_cannot_be_started_is_left_out_at_once) {
  ShrinkingJob job(shrinking(2, 100));
  job.kill("b");
  job.ready(kAll);
  job.cannot_start("b");
  EXPECT_EQ(job.prepared().membership.left_out, std::vector{1});
  EXPECT_TRUE(
      job.has_said("rank 1 on b could not be started; rank 1 cannot be started: it is left"));

  ShrinkingJob rigid(shrinking(0, 100));
  rigid.kill("b");
  rigid.ready(kAll);
  rigid.cannot_start("b");
  EXPECT_EQ(rigid.phase(), Phase::stopping);
}

TEST(CoordinatorShrink, an_exit_is_the_programs_own_word_here_too) {
  ShrinkingJob job(shrinking(1, 100));
  job.tell("b", job.failure(1, 3));
  EXPECT_EQ(job.phase(), Phase::stopping);
}

TEST(CoordinatorShrink, after_a_pause_the_place_is_filled_again) {
  ShrinkingJob job(shrinking(2, 1));
  job.kill("b");
  job.go_on(5);  // the one replacement
  job.kill("c");
  job.go_on(6);
  job.wait(60s);  // but none is left
  EXPECT_EQ(job.coordinator().left_out(), 1);
  EXPECT_FALSE(job.is_reforming());

  ShrinkingJob again(shrinking(2, 100));
  again.kill("b");
  again.ready(kAll);
  again.cannot_start("b");
  again.go_on(5);
  again.wait(7s);
  EXPECT_EQ(again.phase(), Phase::running);
  again.wait(1s);
  ASSERT_TRUE(again.is_reforming());
  EXPECT_EQ(again.prepared().replaced, std::vector{1});
  EXPECT_TRUE(again.prepared().membership.left_out.empty());
  EXPECT_EQ(again.prepared().reason, "rank 1 joins again");
  EXPECT_TRUE(again.has_said("rank 1 is tried again: a new process takes its place (2 of 100)"));
  again.wait(250ms);
  again.go_on(40);
  EXPECT_TRUE(again.has_said("all ranks go on after step 40 (they stood still for 0.25 s)"));
}

TEST(CoordinatorShrink, each_failure_doubles_the_pause_up_to_sixteen_times) {
  ShrinkingJob job(shrinking(2, 100));
  job.kill("b");
  job.ready(kAll);
  job.cannot_start("b");
  for (const int pause : {8, 16, 32, 64, 128, 128}) {
    job.go_on(5);
    job.wait(std::chrono::seconds(pause - 1));
    ASSERT_EQ(job.phase(), Phase::running) << pause;
    job.wait(1s);
    ASSERT_TRUE(job.is_reforming()) << pause;
    job.ready(kAll);
    job.kill("b");  // once is enough
    EXPECT_EQ(job.prepared().membership.left_out, std::vector{1});
  }
  EXPECT_TRUE(job.has_said("rank 1 had been left out before: it is left out"));
  // Once it has taken part it is like any other.
  job.go_on(5);
  job.wait(128s);
  job.go_on(6);
  job.kill("b");
  EXPECT_EQ(job.prepared().replaced, std::vector{1});
  job.ready(kAll);
  job.cannot_start("b");
  job.go_on(7);
  job.wait(8s);
  EXPECT_TRUE(job.is_reforming());
}

TEST(CoordinatorShrink, nobody_is_stopped_for_it_who_is_about_to_end) {
  for (const bool says_so : {true, false}) {
    ShrinkingJob job(shrinking(2, 100));
    job.kill("b");
    job.ready(kAll);
    job.cannot_start("b");
    job.go_on(5);
    if (says_so) job.recovers("a", 9, /*able=*/false);
    if (!says_so) job.tell("a", WorkersSucceeded{job.coordinator().epoch()});
    job.wait(20s);
    EXPECT_EQ(job.phase(), Phase::running);
    // Those who are there decide how it ends.
    if (says_so) job.tell("a", WorkersSucceeded{job.coordinator().epoch()});
    job.tell("c", WorkersSucceeded{job.coordinator().epoch()});
    EXPECT_EQ(job.phase(), Phase::finished);
    EXPECT_EQ(job.last<Finish>("b")->code, 0);
  }
}

TEST(CoordinatorShrink, a_place_whose_time_has_come_waits_until_all_go_on) {
  ShrinkingJob job(shrinking(1, 100));
  job.kill("b");
  job.ready(kAll);
  job.cannot_start("b");
  job.go_on(5);
  job.wait(7s);
  job.kill("c");
  job.wait(3s);
  EXPECT_EQ(job.prepared().replaced, std::vector{2});
  job.go_on(6);
  EXPECT_TRUE(job.is_reforming());  // at once
  EXPECT_EQ(job.prepared().replaced, std::vector{1});
}

TEST(CoordinatorShrink, who_joins_again_begins_again_when_another_dies) {
  ShrinkingJob job(shrinking(1, 100));
  job.kill("b");
  job.ready(kAll);
  job.cannot_start("b");
  job.go_on(5);
  job.wait(8s);
  ASSERT_TRUE(job.is_reforming());
  job.kill("c");
  EXPECT_EQ(job.prepared().replaced, (std::vector{1, 2}));
  EXPECT_TRUE(job.prepared().membership.left_out.empty());
}

TEST(CoordinatorShrink, a_restart_begins_with_all) {
  ShrinkingJob job(shrinking(2, 0, /*restarts=*/1));
  job.kill("b");
  job.go_on(5);
  job.kill("c");
  job.stopped(kAll);
  ASSERT_EQ(job.phase(), Phase::preparing);
  EXPECT_FALSE(job.prepared().carries_over);
  EXPECT_TRUE(job.prepared().membership.left_out.empty());
}

TEST(CoordinatorShrink, a_least_that_the_job_does_not_have_is_refused) {
  CoordinatorDriver job(shrinking(4, 100));
  for (const std::string& id : kAll) job.join(id);
  ASSERT_TRUE(job.last<Finish>("a"));
  EXPECT_EQ(job.last<Finish>("a")->reason, "--min-world is 4, but the job has only 3 ranks");
}

TEST(CoordinatorShrink, nodes_must_agree_on_it) {
  CoordinatorDriver job(shrinking(2, 100));
  job.join("a");
  Join join = job.join_of(node_info("b"));
  join.terms.min_world = 0;
  job.tell("b", join);
  ASSERT_TRUE(job.last<Refused>("b"));
  EXPECT_EQ(job.last<Refused>("b")->reason,
            "--min-world is 2 here, not given on your node; it must be the same on all");
}

namespace {

// The connection of node c has broken, and it does not come back.
struct JobWithoutC : ShrinkingJob {
  explicit JobWithoutC(const JobTerms& terms = shrinking(1, 100)) : ShrinkingJob(terms) {
    close("c");
    pass(3s, {"a", "b"});
  }
};

}  // namespace

TEST(CoordinatorShrink, a_lost_node_is_left_out_and_the_others_go_on) {
  JobWithoutC job;
  ASSERT_TRUE(job.is_reforming());
  EXPECT_EQ(job.prepared().membership.left_out, std::vector{2});
  EXPECT_TRUE(job.prepared().replaced.empty());
  EXPECT_EQ(job.prepared().membership.group_world_size, 3);
  EXPECT_TRUE(
      job.has_said("node c was lost: connection reset: rank 2 is left out, 2 of 3 ranks go "
                   "on (--min-world 1)"));
  job.ready({"a", "b"});
  EXPECT_EQ(job.phase(), Phase::running);
  job.recovers("a", 5);
  job.recovers("b", 5);
  EXPECT_TRUE(job.has_said("2 of 3 ranks go on after step 5"));
  job.pass(100s, {"a", "b"});  // nobody is there who could fill the place
  EXPECT_EQ(job.phase(), Phase::running);
  for (const char* id : {"a", "b"}) job.tell(id, WorkersSucceeded{job.coordinator().epoch()});
  EXPECT_EQ(job.last<Finish>("a")->code, 0);
}

TEST(CoordinatorShrink, a_node_like_the_lost_one_takes_its_place) {
  JobWithoutC job;
  job.ready({"a", "b"});
  job.recovers("a", 5);
  job.recovers("b", 5);
  job.forget_messages();
  job.join("d", /*workers=*/2);  // not like it
  EXPECT_EQ(job.phase(), Phase::running);
  job.join("e");
  ASSERT_TRUE(job.is_reforming());
  EXPECT_FALSE(job.last<Prepare>("d"));
  ASSERT_TRUE(job.last<Prepare>("e"));
  EXPECT_TRUE(job.last<Prepare>("e")->carries_over);
  EXPECT_EQ(job.last<Prepare>("e")->replaced, std::vector{2});
  EXPECT_EQ(job.last<Prepare>("e")->membership.group_rank, 2);
  EXPECT_EQ(job.last<Prepare>("a")->membership.nodes[2].address, "10.0.0.5");
  EXPECT_TRUE(job.last<Prepare>("a")->membership.left_out.empty());
  EXPECT_EQ(job.coordinator().participants(), (std::vector<std::string>{"a", "b", "e"}));
  job.ready({"a", "b", "e"});
  job.recovers("a", 9);
  job.recovers("b", 9);
  job.tell("e", RankRecovers{.epoch = job.coordinator().epoch(), .rank = 2, .step = 9});
  EXPECT_TRUE(job.has_said("all ranks go on after step 9"));
  EXPECT_EQ(job.coordinator().restarts(), 0);
}

TEST(CoordinatorShrink, a_node_that_is_back_and_missed_the_word_hears_it_again) {
  JobWithoutC job;
  job.ready({"a", "b"});
  job.recovers("a", 5);
  job.recovers("b", 5);
  job.rejoin("c", 7, NodePhase::running, 1);  // with workers of an epoch that is over
  ASSERT_TRUE(job.last<Stop>(7));
  EXPECT_EQ(job.phase(), Phase::running);
  job.tell(7, Stopped{1, {}});
  ASSERT_TRUE(job.is_reforming());
  EXPECT_EQ(job.last<Prepare>(7)->replaced, std::vector{2});
  job.rejoin("c", 8, NodePhase::idle, 1);
  ASSERT_TRUE(job.last<Prepare>(8));
  EXPECT_EQ(job.last<Prepare>(8)->replaced, std::vector{2});
}

TEST(CoordinatorShrink, a_node_that_comes_back_to_the_seat_of_another_has_left_its_own) {
  JobWithoutC job;
  job.ready({"a", "b"});
  job.recovers("a", 5);
  job.recovers("b", 5);
  job.close("b");
  job.pass(3s, {"a"});
  job.ready({"a"});
  job.recovers("a", 5);
  job.rejoin("c", 7, NodePhase::idle, 1);  // fits the first of the two seats that are empty
  ASSERT_TRUE(job.is_reforming());
  EXPECT_EQ(job.coordinator().participants(), (std::vector<std::string>{"a", "c", ""}));
  ASSERT_TRUE(job.last<Prepare>(7));
  EXPECT_EQ(job.last<Prepare>(7)->membership.group_rank, 1);
  EXPECT_EQ(job.last<Prepare>(7)->replaced, std::vector{1});
  job.rejoin("c", 8, NodePhase::idle, 1);  // it has missed the word
  ASSERT_TRUE(job.last<Prepare>(8));
  EXPECT_EQ(job.last<Prepare>(8)->membership.group_rank, 1);
}

TEST(CoordinatorShrink, a_node_that_is_lost_while_others_are_replaced_is_left_out_as_well) {
  ShrinkingJob job(shrinking(1, 100));
  job.close("c");
  job.kill("b");
  ASSERT_TRUE(job.is_reforming());
  job.pass(3s, {"a", "b"});
  ASSERT_TRUE(job.is_reforming());
  EXPECT_EQ(job.coordinator().epoch(), 3u);
  EXPECT_EQ(job.prepared().replaced, std::vector{1});
  EXPECT_EQ(job.prepared().membership.left_out, std::vector{2});
}

TEST(CoordinatorShrink, without_leave_a_lost_node_ends_the_job_or_restarts_it) {
  for (const int restarts : {0, 1}) {
    JobWithoutC job(shrinking(3, 100, restarts));
    EXPECT_EQ(job.phase(), Phase::stopping);
    EXPECT_TRUE(job.has_said("a node is lost, and fewer than 3 ranks would be left (--min-world)"));
    job.stopped({"a", "b"});
    EXPECT_EQ(job.phase(), restarts == 0 ? Phase::finished : Phase::gathering);
  }
}

TEST(CoordinatorShrink, a_node_is_not_taken_where_no_replacements_are_left) {
  JobWithoutC job(shrinking(1, 0));
  job.ready({"a", "b"});
  job.recovers("a", 5);
  job.recovers("b", 5);
  job.join("e");
  job.pass(20s, {"a", "b", "e"});
  EXPECT_EQ(job.phase(), Phase::running);
  EXPECT_EQ(job.coordinator().left_out(), 1);
}
