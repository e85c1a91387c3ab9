#include <gtest/gtest.h>

#include <csignal>

#include "state_machine_drivers.h"

using namespace lockstep;
using namespace std::chrono_literals;
using Phase = Coordinator::Phase;

namespace {

JobTerms replacing(int nodes, int replacements = 100, int restarts = 0) {
  JobTerms terms = fixed(nodes, restarts);
  terms.max_replacements = replacements;
  return terms;
}

// Nodes a and b with a worker each: ranks 0 and 1.
struct Job : CoordinatorDriver {
  explicit Job(const JobTerms& terms = replacing(2)) : CoordinatorDriver(terms) {
    start({"a", "b"});
  }

  void recovers(const std::string& id, std::int64_t step, bool able = true) {
    tell(id, RankRecovers{.epoch = coordinator().epoch(),
                          .rank = static_cast<int>(link_of(id)) - 1,
                          .step = step,
                          .able = able});
  }
  void all_recover(std::int64_t step) {
    recovers("a", step);
    recovers("b", step);
  }
  void kill(const std::string& id, int number = SIGKILL) {
    WorkerFailed failed = failure(static_cast<int>(link_of(id)) - 1, 128 + number);
    failed.signal = number;
    tell(id, failed);
  }
  bool is_reforming() { return coordinator().is_reforming(); }
  bool has_said(const std::string& text) { return said().find(text) != std::string::npos; }
};

}  // namespace

TEST(CoordinatorRecovery, a_killed_rank_is_replaced_and_the_others_are_carried_over) {
  Job job;
  job.all_recover(0);
  job.forget_messages();
  job.kill("b");
  EXPECT_TRUE(job.is_reforming());
  EXPECT_EQ(job.coordinator().epoch(), 2u);
  for (const char* id : {"a", "b"}) {
    ASSERT_TRUE(job.last<Prepare>(id));
    EXPECT_EQ(job.last<Prepare>(id)->replaced, std::vector{1});
    EXPECT_EQ(job.last<Prepare>(id)->membership.epoch, 2u);
    EXPECT_FALSE(job.last<Stop>(id));
  }
  EXPECT_TRUE(
      job.has_said("rank 1 on b was ended by SIGKILL: a replacement takes its place (1 of 100)"));
  job.ready({"a", "b"});
  EXPECT_EQ(job.phase(), Phase::running);
  EXPECT_EQ(job.last<Start>("a")->epoch, 2u);

  job.pass(250ms);
  job.recovers("a", 12);
  EXPECT_FALSE(job.last<Recovered>("a"));
  job.recovers("b", 12);
  ASSERT_TRUE(job.last<Recovered>("a"));
  EXPECT_EQ(job.last<Recovered>("a")->step, 12);
  EXPECT_EQ(job.last<Recovered>("b")->since_loss, Time(250ms));
  EXPECT_TRUE(job.has_said("all ranks go on after step 12 (0.25 s after the loss)"));
  EXPECT_EQ(job.coordinator().restarts(), 0);
}

TEST(CoordinatorRecovery, programs_that_never_said_they_can_are_restarted_as_ever) {
  Job job(replacing(2, 100, 1));
  job.kill("b");
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_TRUE(job.last<Stop>("a"));
  EXPECT_FALSE(job.has_said("in place"));
}

TEST(CoordinatorRecovery, a_loss_waits_for_the_words_of_those_who_have_not_spoken_yet) {
  Job job;
  job.recovers("a", 0);
  job.kill("a");  // before b has begun to train
  EXPECT_EQ(job.phase(), Phase::running);
  EXPECT_TRUE(job.coordinator().holds_loss());
  job.pass(4s, {"a", "b"});
  job.recovers("b", 0);
  EXPECT_TRUE(job.is_reforming());
  EXPECT_EQ(job.last<Prepare>("b")->replaced, std::vector{0});
  job.ready({"a", "b"});
  job.all_recover(1);
  EXPECT_EQ(job.last<Recovered>("a")->since_loss, Time(4s));
}

TEST(CoordinatorRecovery, losses_that_wait_are_dealt_with_together) {
  Job job(replacing(3));
  job.join("c");
  job.ready({"a", "b", "c"});
  job.recovers("b", 0);
  job.kill("a");
  job.kill("b");
  EXPECT_EQ(job.phase(), Phase::running);
  job.recovers("c", 0);
  EXPECT_EQ(job.last<Prepare>("c")->replaced, (std::vector{0, 1}));
}

TEST(CoordinatorRecovery, a_loss_does_not_wait_for_ever) {
  Job job;
  job.recovers("a", 0);
  job.kill("a");
  job.pass(11s, {"a", "b"});
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_TRUE(job.has_said("rank 1 cannot be carried over: it has not begun to train"));
}

TEST(CoordinatorRecovery, a_loss_waits_no_longer_when_one_cannot_be_carried_over) {
  Job says_so;
  says_so.recovers("a", 0);
  says_so.kill("a");
  says_so.recovers("b", 0, /*able=*/false);
  EXPECT_EQ(says_so.phase(), Phase::stopping);
  EXPECT_TRUE(says_so.has_said("rank 1 cannot be carried over: it ends, or has ended"));

  Job ends;
  ends.recovers("a", 0);
  ends.kill("a");
  ends.tell("b", WorkersSucceeded{1});
  EXPECT_EQ(ends.phase(), Phase::stopping);

  Job fails;
  fails.recovers("a", 0);
  fails.kill("a");
  fails.tell("b", fails.failure(1, 3));
  EXPECT_EQ(fails.phase(), Phase::stopping);
  EXPECT_TRUE(fails.has_said("rank 1 ended by itself"));
  EXPECT_FALSE(fails.coordinator().holds_loss());
}

TEST(CoordinatorRecovery, who_takes_it_back_is_not_carried_over) {
  Job job;
  job.all_recover(0);
  job.recovers("a", 40, /*able=*/false);
  job.kill("b");
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_TRUE(job.has_said("rank 0 cannot be carried over"));
}

TEST(CoordinatorRecovery, an_exit_is_not_replaced) {
  Job job;
  job.all_recover(0);
  job.tell("b", job.failure(1, 137));  // by itself: a shell's way to say it
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_TRUE(job.has_said("rank 1 ended by itself, with exit code 137"));
}

TEST(CoordinatorRecovery, another_loss_while_re_forming_begins_another_epoch_with_both) {
  Job job(replacing(3));
  job.join("c");
  job.ready({"a", "b", "c"});
  ASSERT_EQ(job.phase(), Phase::running);
  for (const char* id : {"a", "b", "c"}) job.recovers(id, 0);
  job.kill("b");
  job.kill("c");
  EXPECT_EQ(job.coordinator().epoch(), 3u);
  EXPECT_EQ(job.last<Prepare>("a")->replaced, (std::vector{1, 2}));
  job.ready({"a", "b", "c"});
  EXPECT_EQ(job.phase(), Phase::running);
  // A new worker that has shown its state is kept when the next one dies, one that has not is not.
  job.recovers("b", 5);
  job.kill("a");
  EXPECT_EQ(job.last<Prepare>("a")->replaced, (std::vector{0, 2}));
}

TEST(CoordinatorRecovery, without_state_left_the_job_is_restarted_if_it_may) {
  for (const int restarts : {0, 1}) {
    Job job(replacing(2, 100, restarts));
    job.all_recover(0);
    job.kill("b");
    job.kill("a");
    EXPECT_EQ(job.phase(), Phase::stopping);
    EXPECT_TRUE(job.has_said("no rank with the job's state is left"));
    job.stopped({"a", "b"});
    EXPECT_EQ(job.phase(), restarts == 0 ? Phase::finished : Phase::preparing);
    EXPECT_FALSE(job.is_reforming());
    if (restarts == 0) {
      EXPECT_EQ(job.last<Finish>("a")->failures.size(), 2u);
    }
  }
}

TEST(CoordinatorRecovery, replacements_are_limited) {
  Job job(replacing(2, 1));
  job.all_recover(0);
  job.kill("b");
  job.ready({"a", "b"});
  job.all_recover(5);
  job.kill("b");
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_TRUE(job.has_said("1 of 1 replacements are used (--max-replacements)"));
}

TEST(CoordinatorRecovery, a_rank_that_dies_twice_at_one_step_ends_the_job) {
  Job job(replacing(2, 100, 3));
  job.all_recover(0);
  for (const int round : {1, 2}) {
    EXPECT_EQ(job.phase(), Phase::running) << round;
    job.kill("b", SIGSEGV);
    job.ready({"a", "b"});
    job.all_recover(7);
  }
  EXPECT_EQ(job.phase(), Phase::stopping);
  job.stopped({"a", "b"});
  ASSERT_EQ(job.phase(), Phase::finished);
  EXPECT_EQ(job.last<Finish>("a")->code, 128 + SIGSEGV);
  EXPECT_NE(job.last<Finish>("a")->reason.find("the second time at step 7"), std::string::npos);
}

TEST(CoordinatorRecovery, a_rank_that_keeps_dying_before_it_takes_part_is_given_up) {
  Job job;
  job.all_recover(0);
  for (int round = 0; round < 3; ++round) {
    job.kill("b");
    ASSERT_TRUE(job.is_reforming()) << round;
    job.ready({"a", "b"});
  }
  job.kill("b");
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_TRUE(job.has_said("rank 1 died 4 times before all could go on"));
}

TEST(CoordinatorRecovery, a_node_that_cannot_re_form_leads_to_the_next_rung) {
  Job job;
  job.all_recover(0);
  job.kill("b");
  job.tell("a", CannotReform{2, "rank 0 has already ended well"});
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_TRUE(job.has_said("cannot go on in place: rank 0 has already ended well"));
  job.stopped({"a", "b"});
  EXPECT_EQ(job.last<Finish>("a")->code, 128 + SIGKILL);
}

TEST(CoordinatorRecovery, a_worker_that_had_left_when_the_epoch_began_leads_there_too) {
  Job job;
  job.all_recover(0);
  job.kill("b");
  job.ready({"a", "b"});
  ASSERT_EQ(job.phase(), Phase::running);
  job.tell("a", CannotReform{2, "rank 0 ends, or has ended"});
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_TRUE(job.has_said("cannot go on in place: rank 0 ends, or has ended"));
  job.stopped({"a", "b"});
  EXPECT_EQ(job.last<Finish>("a")->code, 128 + SIGKILL);
}

TEST(CoordinatorRecovery, who_goes_on_may_leave_before_all_others_have_shown_it) {
  Job job;
  job.all_recover(0);
  job.kill("b");
  job.ready({"a", "b"});
  job.recovers("a", 40);
  job.recovers("a", 40, /*able=*/false);
  job.recovers("b", 40);
  EXPECT_TRUE(job.has_said("all ranks go on after step 40"));
  job.tell("a", CannotReform{2, "late"});
  EXPECT_EQ(job.phase(), Phase::running);
}

TEST(CoordinatorRecovery, re_forming_has_a_limit) {
  Job job;
  job.all_recover(0);
  job.kill("b");
  job.pass(31s, {"a", "b"});
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_TRUE(job.has_said("not all nodes were ready within 30 s"));
}

TEST(CoordinatorRecovery, a_node_that_comes_back_hears_what_it_missed) {
  Job job;
  job.all_recover(0);
  job.close("a");
  job.kill("b");
  EXPECT_TRUE(job.is_reforming());
  job.rejoin("a", 7, NodePhase::running, 1);
  ASSERT_TRUE(job.last<Prepare>(7));
  EXPECT_EQ(job.last<Prepare>(7)->replaced, std::vector{1});

  // Again, when it is ready, and when it has missed the start.
  Join join = job.join_of(node_info("a"));
  join.phase = NodePhase::reforming;
  join.epoch = 2;
  join.ready = true;
  join.store_port = 29501;
  job.tell(8, join);
  job.ready({"b"});
  EXPECT_EQ(job.phase(), Phase::running);
  job.tell(9, join);
  ASSERT_TRUE(job.last<Start>(9));
  EXPECT_EQ(job.last<Start>(9)->master_port, 29501);
}

TEST(CoordinatorRecovery, a_node_that_gave_its_workers_up_while_re_forming_is_lost) {
  Job job;
  job.all_recover(0);
  job.close("b");
  job.kill("a");
  job.rejoin("b", 7, NodePhase::idle, 1);
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_FALSE(job.last<Prepare>(7));
}

TEST(CoordinatorRecovery, words_about_an_epoch_that_is_over_change_nothing) {
  Job job;
  job.all_recover(0);
  job.kill("b");
  WorkerFailed late{.epoch = 1, .rank = 0, .code = 137, .signal = SIGKILL};
  job.tell("a", late);
  job.tell("a", CannotReform{1, "late"});
  job.tell("a", RankRecovers{.epoch = 1, .rank = 1});
  EXPECT_TRUE(job.is_reforming());
  EXPECT_EQ(job.coordinator().epoch(), 2u);
}

TEST(CoordinatorRecovery, a_rank_that_others_reject_is_replaced) {
  Job job;
  job.all_recover(0);
  job.tell("a", RanksRejected{1, {1}, "its state differs"});
  EXPECT_TRUE(job.is_reforming());
  EXPECT_EQ(job.last<Prepare>("b")->replaced, std::vector{1});
  EXPECT_TRUE(job.has_said("rank 1 must be replaced: its state differs"));
}

TEST(CoordinatorRecovery, nodes_must_agree_on_it) {
  CoordinatorDriver job(replacing(2));
  job.join("a");
  Join join = job.join_of(node_info("b"));
  join.terms.max_replacements = 0;
  job.tell("b", join);
  ASSERT_TRUE(job.last<Refused>("b"));
  EXPECT_NE(job.last<Refused>("b")->reason.find("--recovery and --max-replacements"),
            std::string::npos);
}

TEST(CoordinatorRecovery, a_death_that_was_not_heard_of_before_the_start_is_not_forgotten) {
  Job job(replacing(3));
  job.join("c");
  job.ready({"a", "b", "c"});
  for (const char* id : {"a", "b", "c"}) job.recovers(id, 0);
  job.kill("b");
  job.ready({"a", "b", "c"});
  ASSERT_EQ(job.phase(), Phase::running);
  Join join = job.join_of(node_info("c"));
  join.phase = NodePhase::reforming;
  join.epoch = 2;
  join.ready = true;
  join.failures = {{.epoch = 2, .rank = 2, .code = 128 + SIGKILL, .signal = SIGKILL}};
  job.tell(7, join);
  EXPECT_TRUE(job.is_reforming());
  EXPECT_EQ(job.last<Prepare>(7)->replaced, (std::vector{1, 2}));
}

TEST(CoordinatorRecovery, a_node_that_has_ended_well_and_gone_cannot_be_carried_over) {
  Job job;
  job.all_recover(0);
  job.tell("b", WorkersSucceeded{1});
  job.close("b");
  job.pass(3s, {"a"});  // longer than a node may be away
  job.kill("a");
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_TRUE(job.has_said("the workers of a node have already ended well"));
}
