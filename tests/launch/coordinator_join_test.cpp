// Who may take part, and when an epoch begins.
#include <gtest/gtest.h>

#include "launch/coordinator.h"
#include "tests/launch/state_machine_drivers.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Phase = Coordinator::Phase;

TEST(CoordinatorJoin, AJobOfOneNodeStartsAtOnce) {
  CoordinatorDriver job(fixed(1));
  job.join("a", 4);
  ASSERT_TRUE(job.last<Prepare>("a"));
  EXPECT_EQ(job.last<Prepare>("a")->membership.places, 4);
  EXPECT_FALSE(job.last<Start>("a"));
  job.ready({"a"});
  EXPECT_EQ(job.phase(), Phase::running);
  EXPECT_EQ(job.last<Start>("a")->master_port, 29500);
}

TEST(CoordinatorJoin, WorkersStartWhenAllNodesAreReadyAndMeetAtTheFirstOne) {
  CoordinatorDriver job(fixed(3));
  for (const char* id : {"c", "a", "b"}) job.join(id, 2);
  EXPECT_EQ(job.last<Prepare>("b")->membership.group_rank, 1);
  job.tell("a", Ready{1, 29500});
  job.tell("c", Ready{1, 0});
  EXPECT_FALSE(job.last<Start>("a"));
  job.tell("b", Ready{1, 0});
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_TRUE(job.last<Start>(id)) << id;
    EXPECT_EQ(job.last<Start>(id)->master_addr, "10.0.0.1");
    EXPECT_EQ(job.last<Start>(id)->master_port, 29500);
  }
}

TEST(CoordinatorJoin, MoreThanEnoughNodesAreAwaitedForTheLastCall) {
  CoordinatorDriver job(elastic(2, 4), 10s);
  job.join("a");
  job.pass(20s, {"a"});
  EXPECT_EQ(job.phase(), Phase::gathering);
  job.join("b");
  job.pass(5s, {"a", "b"});
  job.join("c");
  EXPECT_EQ(job.phase(), Phase::gathering);
  job.pass(6s, {"a", "b", "c"});
  EXPECT_EQ(job.phase(), Phase::preparing);
  EXPECT_EQ(job.coordinator().participants(), (std::vector<std::string>{"a", "b", "c"}));
}

TEST(CoordinatorJoin, AtTheGreatestNumberThereIsNoLastCall) {
  CoordinatorDriver job(elastic(1, 2));
  job.join("a");
  EXPECT_EQ(job.phase(), Phase::gathering);
  job.join("b");
  EXPECT_EQ(job.phase(), Phase::preparing);
}

TEST(CoordinatorJoin, ALastCallEndsWhenThereAreTooFewAgain) {
  CoordinatorDriver job(elastic(2, 3), 10s);
  job.join("a");
  job.join("b");
  job.pass(9500ms, {"a", "b"});
  job.close("b");
  job.pass(1s, {"a"});
  EXPECT_EQ(job.phase(), Phase::gathering);
  EXPECT_EQ(job.coordinator().epoch(), 0u);
}

TEST(CoordinatorJoin, NodesBeyondTheGreatestNumberWaitAndReplaceALostOne) {
  CoordinatorDriver job(fixed(2, 1));
  job.start({"a", "b"});
  job.join("c");
  EXPECT_FALSE(job.last<Prepare>("c"));
  EXPECT_EQ(job.phase(), Phase::running);
  job.pass(8s, {"a", "c"});
  EXPECT_EQ(job.phase(), Phase::stopping);
  job.stopped({"a"});
  EXPECT_EQ(job.coordinator().participants(), (std::vector<std::string>{"a", "c"}));
  EXPECT_EQ(job.last<Prepare>("c")->membership.restart_count, 1);
}

TEST(CoordinatorJoin, WhenThereAreTooManyThoseWhoWereMembersStay) {
  CoordinatorDriver job(fixed(2, 1));
  job.start({"b", "c"});
  job.join("a");
  job.tell("b", job.failure(0, 1));
  job.stopped({"b", "c"});
  EXPECT_EQ(job.coordinator().participants(), (std::vector<std::string>{"b", "c"}));
}

TEST(CoordinatorJoin, AnotherRunIdIsNamedWithItsUsualCause) {
  CoordinatorDriver job(fixed(2));
  Join join = job.join_of(node_info("b"));
  join.terms.run_id = "12345";
  job.tell("b", join);
  ASSERT_TRUE(job.last<Refused>("b"));
  const std::string reason = job.last<Refused>("b")->reason;
  for (const char* part : {"'job'", "'12345'", "$RANDOM", "--rdzv-id"}) {
    EXPECT_NE(reason.find(part), std::string::npos) << reason;
  }
  EXPECT_TRUE(job.closed(2));
  EXPECT_NE(job.said().find("refused b (10.0.0.2)"), std::string::npos) << job.said();
}

TEST(CoordinatorJoin, OtherTermsAreRefusedByName) {
  CoordinatorDriver job(elastic(2, 3, 1));
  const auto refusal = [&](const JobTerms& terms) {
    Join join = job.join_of(node_info("b"));
    join.terms = terms;
    job.tell("b", join);
    return job.last<Refused>("b").value_or(Refused{"was not refused"}).reason;
  };
  EXPECT_NE(refusal(elastic(1, 3, 1)).find("--nnodes is 2:3 here, 1:3"), std::string::npos);
  EXPECT_NE(refusal(elastic(2, 4, 1)).find("--nnodes"), std::string::npos);
  EXPECT_NE(refusal(elastic(2, 3, 2)).find("--max-restarts is 1 here, 2"), std::string::npos);
  JobTerms terms = elastic(2, 3, 1);
  terms.local_store = true;
  EXPECT_NE(refusal(terms).find("--store is shared here, local on your node"), std::string::npos);
  terms = elastic(2, 3, 1);
  terms.beat_limit = std::chrono::milliseconds(7500);
  EXPECT_NE(refusal(terms).find("lost after 6 s here, 1 s and 7.5 s on your node"),
            std::string::npos);
}

TEST(CoordinatorJoin, WithALocalStoreANodeThatComesBackIsReadyWhenItsOwnEndIsOpen) {
  JobTerms terms = fixed(2);
  terms.local_store = true;
  CoordinatorDriver job(terms);
  job.join("a");
  job.join("b");
  const Epoch epoch = job.coordinator().epoch();
  job.tell("a", Ready{epoch, 1000});
  job.close("b");
  job.rejoin("b", 12, NodePhase::prepared, epoch);  // no port yet
  EXPECT_EQ(job.phase(), Coordinator::Phase::preparing);
  job.tell(12, Ready{epoch, 2000});
  EXPECT_EQ(job.phase(), Coordinator::Phase::running);
}

TEST(CoordinatorJoin, ANodeRankOutsideTheJobIsRefused) {
  CoordinatorDriver job(fixed(2));
  job.join("b", 1, 2);
  ASSERT_TRUE(job.last<Refused>("b"));
  EXPECT_NE(job.last<Refused>("b")->reason.find("--node-rank is 2"), std::string::npos);
}

TEST(CoordinatorJoin, ANodeRankThatALivingNodeHoldsIsRefused) {
  CoordinatorDriver job(fixed(3));
  job.join("a", 1, 0);
  job.join("b", 1, 1);
  job.join("c", 1, 1);
  EXPECT_FALSE(job.last<Refused>("c")) << "the holder may be dead";
  EXPECT_NE(job.last<Status>("c")->text.find("held by b"), std::string::npos);
  EXPECT_TRUE(job.closed(3));
  job.pass(2s, {"a", "b"});
  job.join("c", 1, 1);
  ASSERT_TRUE(job.last<Refused>("c"));
  EXPECT_NE(job.last<Refused>("c")->reason.find("--node-rank 1 is already taken by b (10.0.0.2)"),
            std::string::npos);
}

TEST(CoordinatorJoin, AMachineThatLostItsPowerGetsItsNodeRankBack) {
  CoordinatorDriver job(fixed(2, 1));
  job.join("a", 1, 0);
  job.join("b", 1, 1);
  job.pass(1s, {"a"});
  Join again = job.join_of(node_info("b", 1, 1));
  again.node.id = "b again";
  for (int i = 0; i < 20; ++i) {
    job.pass(500ms, {"a"});
    if (job.coordinator().participants().back() == "b again") break;
    if (job.phase() == Phase::stopping) job.stopped({"a"});
    job.coordinator().on_message(99, again, job.now());
  }
  EXPECT_EQ(job.coordinator().participants(), (std::vector<std::string>{"a", "b again"}));
}

TEST(CoordinatorJoin, TimeOutNamesWhoIsHereAndTheNodeRanksThatAreMissing) {
  CoordinatorDriver job(fixed(3));
  job.join("a", 1, 0);
  job.join("c", 1, 2);
  job.pass(7s, {"a", "c"});
  EXPECT_NE(job.last<Status>("a")->text.find("2 of 3 nodes joined: a (10.0.0.1), c (10.0.0.3); 1 "
                                             "missing: node rank 1; waiting for"),
            std::string::npos)
      << job.last<Status>("a")->text;
  job.pass(594s, {"a", "c"});
  ASSERT_TRUE(job.last<Finish>("c"));
  EXPECT_EQ(job.last<Finish>("c")->code, 1);
  const std::string reason = job.last<Finish>("c")->reason;
  for (const char* part : {"not enough nodes", "a (10.0.0.1)", "node rank 1", "600 s"}) {
    EXPECT_NE(reason.find(part), std::string::npos) << reason;
  }
}

TEST(CoordinatorJoin, TimeOutNamesExpectedHosts) {
  CoordinatorDriver job(fixed(3));
  job.options().expected_hosts = {"a", "b", "c"};
  job.join("b");
  EXPECT_NE(job.coordinator().status(job.now()).find("2 missing: a, c"), std::string::npos)
      << job.coordinator().status(job.now());
}

TEST(CoordinatorJoin, TimeOutNamesWhoHasGone) {
  CoordinatorDriver job(fixed(2, 3));
  job.start({"a", "b"});
  job.close("b");
  job.pass(4s, {"a"});
  job.stopped({"a"});
  ASSERT_EQ(job.phase(), Phase::gathering);
  const std::string status = job.coordinator().status(job.now());
  EXPECT_NE(status.find("1 missing: b (lost "), std::string::npos) << status;
  EXPECT_NE(status.find("connection reset"), std::string::npos) << status;
}

TEST(CoordinatorJoin, AnElasticJobGrowsWhenANodeComesLate) {
  CoordinatorDriver job(elastic(1, 3), 1s);
  job.join("a");
  job.pass(2s, {"a"});
  job.ready({"a"});
  ASSERT_EQ(job.phase(), Phase::running);
  job.join("b");
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_NE(job.last<Stop>("a")->reason.find("joined"), std::string::npos);
  job.stopped({"a"});
  EXPECT_EQ(job.phase(), Phase::preparing) << "nobody is missing, so there is no last call";
  EXPECT_EQ(job.coordinator().participants().size(), 2u);
  EXPECT_EQ(job.coordinator().restarts(), 0);
}

TEST(CoordinatorJoin, AJobDoesNotGrowOnceWorkersHaveSucceeded) {
  CoordinatorDriver job(elastic(2, 3), 1s);
  job.join("a");
  job.join("b");
  job.pass(2s, {"a", "b"});
  job.ready({"a", "b"});
  job.tell("a", WorkersSucceeded{1});
  job.join("c");
  EXPECT_EQ(job.phase(), Phase::running);
  job.tell("b", WorkersSucceeded{1});
  EXPECT_EQ(job.last<Finish>("c")->code, 0);
}

}  // namespace
}  // namespace lockstep
