// Failures, losses, restarts and ends.
#include "launch/coordinator.h"

#include <csignal>

#include <gtest/gtest.h>

#include "tests/launch/state_machine_drivers.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Phase = Coordinator::Phase;

TEST(Coordinator, AJobSucceedsWhenAllNodesHave) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.tell("a", WorkersSucceeded{1});
  EXPECT_EQ(job.phase(), Phase::running);
  job.tell("b", WorkersSucceeded{1});
  EXPECT_EQ(job.phase(), Phase::finished);
  for (const char* id : {"a", "b"}) EXPECT_EQ(job.last<Finish>(id)->code, 0);
}

TEST(Coordinator, ItIsDoneWhenEveryNodeHasConfirmedTheEnd) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.tell("a", WorkersSucceeded{1});
  job.tell("b", WorkersSucceeded{1});
  job.tell("a", Leave{0, "the job has ended"});
  EXPECT_FALSE(job.done());
  job.tell("b", Leave{0, "the job has ended"});
  EXPECT_TRUE(job.done());
  EXPECT_EQ(job.coordinator().next_deadline(), Time::max());
}

TEST(Coordinator, TheEndIsToldAgainToANodeThatLostItsConnection) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.tell("a", WorkersSucceeded{1});
  job.tell("b", WorkersSucceeded{1});
  job.tell("a", Leave{0, "the job has ended"});
  job.close("b");
  job.rejoin("b", 12, NodePhase::succeeded, 1);
  EXPECT_FALSE(job.done());
  ASSERT_TRUE(job.last<Finish>(12));
  EXPECT_EQ(job.last<Finish>(12)->code, 0);
}

TEST(Coordinator, ANodeThatWasGivenUpHearsTheEndAndAStrangerIsRefused) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.close("b");
  job.pass(4s, {"a"});
  job.stopped({"a"});
  ASSERT_EQ(job.phase(), Phase::finished);
  job.rejoin("b", 12, NodePhase::running, 1);
  ASSERT_TRUE(job.last<Finish>(12));
  EXPECT_EQ(encode(*job.last<Finish>(12)), encode(*job.last<Finish>("a")));
  job.rejoin("c", 13, NodePhase::idle, 0);
  ASSERT_TRUE(job.last<Refused>(13));
  EXPECT_EQ(job.last<Refused>(13)->reason, "the job has ended");
}

TEST(Coordinator, ItDoesNotWaitForEverForANodeToHearTheEnd) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.tell("a", WorkersSucceeded{1});
  job.tell("b", WorkersSucceeded{1});
  job.tell("a", Leave{0, "the job has ended"});
  job.pass(6s);
  EXPECT_TRUE(job.done());
}

TEST(Coordinator, AFailureStopsAllAndEndsTheJobWithItsCode) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.tell("b", job.failure(1, 3));
  EXPECT_EQ(job.last<Stop>("a")->epoch, 1u);
  EXPECT_EQ(job.last<Stop>("a")->signal, SIGTERM);
  job.tell("a", Stopped{1, {0}});
  EXPECT_FALSE(job.last<Finish>("a"));
  job.tell("b", Stopped{1, {}});
  const Finish finish = job.last<Finish>("a").value();
  EXPECT_EQ(finish.code, 3);
  EXPECT_EQ(finish.stopped_ranks, std::vector<int>{0});
  ASSERT_EQ(finish.failures.size(), 1u);
  EXPECT_EQ(finish.failures[0].rank, 1);
}

TEST(Coordinator, TheEarliestOfSeveralFailuresIsTheCauseWhicheverIsHeardFirst) {
  CoordinatorDriver job(fixed(3));
  job.start({"a", "b", "c"});
  job.tell("a", job.failure(0, 1, 10ms));
  job.tell("c", job.failure(2, 139, 500ms));
  job.tell("b", job.failure(1, 7, 100ms));
  job.stopped({"a", "b", "c"});
  const Finish finish = job.last<Finish>("b").value();
  EXPECT_EQ(finish.code, 139);
  ASSERT_EQ(finish.failures.size(), 3u);
  EXPECT_EQ(finish.failures[0].rank, 2);
  EXPECT_EQ(finish.failures[1].rank, 1);
  EXPECT_EQ(finish.failures[2].rank, 0);
}

TEST(Coordinator, RestartsAreCountedForTheWholeJob) {
  CoordinatorDriver job(fixed(2, 2));
  job.start({"a", "b"});
  for (int restart = 1; restart <= 2; ++restart) {
    const char* id = restart == 1 ? "a" : "b";
    job.tell(id, job.failure(restart - 1, 1));
    job.tell(id, job.failure(restart - 1, 1));
    job.stopped({"a", "b"});
    EXPECT_EQ(job.coordinator().restarts(), restart);
    EXPECT_EQ(job.last<Prepare>("a")->membership.restart_count, restart);
    EXPECT_EQ(job.coordinator().epoch(), static_cast<Epoch>(restart + 1));
    job.ready({"a", "b"});
  }
  job.tell("a", job.failure(0, 9));
  job.stopped({"a", "b"});
  EXPECT_EQ(job.last<Finish>("a")->code, 9);
}

TEST(Coordinator, ExitCode75IsPassedOnAndNotRestarted) {
  CoordinatorDriver job(fixed(1, 5));
  job.start({"a"});
  job.tell("a", job.failure(0, 75));
  job.stopped({"a"});
  EXPECT_EQ(job.last<Finish>("a")->code, 75);
  EXPECT_EQ(job.coordinator().restarts(), 0);
}

TEST(Coordinator, ExitCode75IsPassedOnAlthoughALaterFailureWasHeardFirst) {
  CoordinatorDriver job(fixed(2, 5));
  job.start({"a", "b"});
  job.tell("b", job.failure(1, 1, 1ms));
  job.tell("a", job.failure(0, 75, 50ms));
  job.stopped({"a", "b"});
  ASSERT_TRUE(job.last<Finish>("a"));
  EXPECT_EQ(job.last<Finish>("a")->code, 75);
}

TEST(Coordinator, ASilentNodeIsLostAndAFixedJobFails) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.pass(5s, {"a"});
  EXPECT_EQ(job.phase(), Phase::running);
  job.pass(3s, {"a"});
  EXPECT_EQ(job.phase(), Phase::stopping);
  EXPECT_TRUE(job.closed(2));
  job.stopped({"a"});
  EXPECT_EQ(job.last<Finish>("a")->code, 1);
  EXPECT_NE(job.last<Finish>("a")->reason.find("node b was lost: nothing was heard of it for"),
            std::string::npos);
  // Who joined and who was lost, for the run's events.
  using Kind = NodeChange::Kind;
  const std::vector<NodeChange>& changes = job.node_changes();
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_EQ(changes[0].host, "a");
  EXPECT_EQ(changes[1].kind, Kind::joined);
  EXPECT_EQ(changes[2].kind, Kind::lost);
  EXPECT_EQ(changes[2].host, "b");
  EXPECT_TRUE(changes[2].reason.starts_with("nothing was heard of it for")) << changes[2].reason;
}

TEST(Coordinator, AFixedJobWithRestartsWaitsForTheLostNode) {
  CoordinatorDriver job(fixed(2, 1));
  job.start({"a", "b"});
  job.pass(8s, {"a"});
  job.stopped({"a"});
  EXPECT_EQ(job.phase(), Phase::gathering);
  EXPECT_EQ(job.coordinator().restarts(), 1);
  job.join("b");
  EXPECT_EQ(job.phase(), Phase::preparing);
}

TEST(Coordinator, AnElasticJobGoesOnWithoutALostNodeAndPaysNoRestart) {
  CoordinatorDriver job(elastic(1, 2), 5s);
  job.start({"a", "b"});
  job.close("b");
  job.pass(3500ms, {"a"});
  job.stopped({"a"});
  EXPECT_EQ(job.phase(), Phase::gathering);
  job.pass(6s, {"a"});
  EXPECT_EQ(job.phase(), Phase::preparing);
  EXPECT_EQ(job.coordinator().participants(), std::vector<std::string>{"a"});
  EXPECT_EQ(job.coordinator().restarts(), 0);
}

TEST(Coordinator, ANodeLostWhilePreparingCostsNoRestart) {
  CoordinatorDriver job(fixed(2, 1));
  job.join("a");
  job.join("b");
  job.tell("a", Ready{1, 29500});
  job.close("b");
  job.pass(4s, {"a"});
  EXPECT_EQ(job.phase(), Phase::stopping);
  job.stopped({"a"});
  EXPECT_EQ(job.phase(), Phase::gathering);
  EXPECT_EQ(job.coordinator().restarts(), 0);
}

TEST(Coordinator, ANodeLostWhileStoppingIsNotWaitedFor) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.tell("a", job.failure(0, 4));
  job.stopped({"a"});
  job.close("b");
  job.pass(4s, {"a"});
  EXPECT_EQ(job.last<Finish>("a")->code, 4);
}

TEST(Coordinator, ANodeLostAfterItsWorkersSucceededIsNotMissed) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.tell("b", WorkersSucceeded{1});
  job.close("b");
  job.pass(4s, {"a"});
  EXPECT_EQ(job.phase(), Phase::running);
  job.tell("a", WorkersSucceeded{1});
  EXPECT_EQ(job.last<Finish>("a")->code, 0);
}

TEST(Coordinator, ANodeThatWasLostAndCameBackDoesNotHoldUpTheEpochItLeft) {
  CoordinatorDriver job(elastic(1, 3), 1s);
  job.start({"a", "b", "c"});
  job.pass(8s, {"a", "c"});
  ASSERT_EQ(job.phase(), Phase::stopping);
  job.rejoin("b", 12, NodePhase::stopping, 1);
  job.stopped({"a", "c"});
  EXPECT_EQ(job.phase(), Phase::gathering);
}

TEST(Coordinator, NodesThatDoNotStopInTimeAreLostTogetherAndTheOthersGoOn) {
  CoordinatorDriver job(elastic(1, 4), 1s);
  job.start({"a", "b", "c", "d"});
  job.tell("a", job.failure(0, 1));
  ASSERT_EQ(job.phase(), Phase::stopping);
  // Only the others are late; with max_restarts 0 the job then ends for all.
  job.stopped({"c", "d"});
  job.pass(91s, {"a", "b", "c", "d"});
  EXPECT_EQ(job.phase(), Phase::finished);
  EXPECT_TRUE(job.last<Finish>("c"));
  EXPECT_TRUE(job.last<Finish>("d"));
  EXPECT_TRUE(job.closed(1));
  EXPECT_FALSE(job.closed(3));
}

TEST(Coordinator, LosingTheLastLateNodeDoesNotCostTheMembersOfTheNextEpoch) {
  CoordinatorDriver job(elastic(1, 2, 1), 1s);
  job.start({"b", "c"});
  job.join("d");
  job.join("e");
  job.tell("b", job.failure(0, 1));
  job.stopped({"c"});
  job.pass(91s, {"b", "c", "d", "e"});
  EXPECT_EQ(job.phase(), Phase::preparing);
  EXPECT_EQ(job.coordinator().participants(), (std::vector<std::string>{"c", "d"}));
  EXPECT_FALSE(job.closed(3));
}

TEST(Coordinator, AReconnectWithinTheLimitKeepsTheWorkers) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.close("b");
  job.pass(1s, {"a"});
  job.rejoin("b", 12, NodePhase::running, 1);
  EXPECT_EQ(job.phase(), Phase::running);
  EXPECT_FALSE(job.last<Stop>(12));
  job.coordinator().on_message(12, WorkersSucceeded{1}, job.now());
  job.tell("a", WorkersSucceeded{1});
  EXPECT_EQ(job.last<Finish>(12)->code, 0);
}

TEST(Coordinator, WhatWasLostWithAConnectionIsSaidAgain) {
  CoordinatorDriver job(fixed(2));
  job.join("a");
  job.join("b");
  job.rejoin("b", 12, NodePhase::idle, 0);
  EXPECT_EQ(job.last<Prepare>(12)->membership.epoch, 1u);
  EXPECT_TRUE(job.closed(2));
  job.tell("a", Ready{1, 29500});
  job.rejoin("b", 13, NodePhase::prepared, 1);
  EXPECT_EQ(job.phase(), Phase::running);
  EXPECT_TRUE(job.last<Start>(13));
  job.rejoin("b", 14, NodePhase::prepared, 1);
  EXPECT_TRUE(job.last<Start>(14));
  job.tell("a", job.failure(0, 1));
  job.rejoin("b", 15, NodePhase::running, 1);
  EXPECT_EQ(job.last<Stop>(15)->epoch, 1u);
  job.rejoin("b", 16, NodePhase::idle, 1);
  job.stopped({"a"});
  EXPECT_EQ(job.last<Finish>(16)->code, 1);
}

TEST(Coordinator, FailuresThatWereLostWithAConnectionComeWithTheNextOne) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.rejoin("b", 12, NodePhase::running, 1, {job.failure(1, 5, 1s)});
  EXPECT_EQ(job.phase(), Phase::stopping);
  job.stopped({"a"});
  job.coordinator().on_message(12, Stopped{1, {}}, job.now());
  EXPECT_EQ(job.phase(), Phase::finished);
  job.rejoin("b", 13, NodePhase::idle, 1);
  EXPECT_EQ(job.last<Finish>(13)->code, 5);
}

TEST(Coordinator, GroupRankZeroIsReadyOnlyWhenItsStoreIsOpen) {
  CoordinatorDriver job(fixed(2));
  job.join("b");
  job.join("c");
  job.tell("c", Ready{1, 0});
  job.rejoin("b", 12, NodePhase::prepared, 1);
  EXPECT_EQ(job.phase(), Phase::preparing);
  job.coordinator().on_message(12, Ready{1, 29501}, job.now());
  EXPECT_EQ(job.phase(), Phase::running);
}

TEST(Coordinator, ANodeThatStoppedItsWorkersWhileCutOffTakesPartInTheNextEpoch) {
  CoordinatorDriver job(elastic(1, 2), 1s);
  job.start({"a", "b"});
  job.rejoin("b", 12, NodePhase::idle, 1);
  EXPECT_EQ(job.phase(), Phase::stopping);
  job.stopped({"a"});
  job.pass(2s, {"a"});
  EXPECT_EQ(job.phase(), Phase::preparing);
  EXPECT_EQ(job.coordinator().participants(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(job.last<Prepare>(12)->membership.epoch, 2u);
}

TEST(Coordinator, MessagesAboutAnOldEpochChangeNothing) {
  CoordinatorDriver job(fixed(2, 3));
  job.start({"a", "b"});
  const WorkerFailed old = job.failure(0, 1);
  job.tell("a", old);
  job.stopped({"a", "b"});
  ASSERT_EQ(job.coordinator().epoch(), 2u);
  job.tell("a", Ready{1, 1});
  job.tell("b", Ready{1, 0});
  EXPECT_EQ(job.phase(), Phase::preparing);
  job.ready({"a", "b"});
  job.tell("a", old);
  job.tell("a", WorkersSucceeded{1});
  job.tell("b", WorkersSucceeded{1});
  job.tell("b", Stopped{1, {}});
  EXPECT_EQ(job.phase(), Phase::running);
  EXPECT_EQ(job.coordinator().restarts(), 1);
}

TEST(Coordinator, ANewCoordinatorGoesOnCountingWhereNodesSayTheOldOneWas) {
  CoordinatorDriver job(fixed(2, 3));
  job.join("a");
  Join back = job.join_of(node_info("b"));
  back.phase = NodePhase::running;
  back.epoch = 7;
  back.restart_count = 2;
  job.tell("b", back);
  EXPECT_EQ(job.last<Stop>("b")->epoch, 7u);
  EXPECT_EQ(job.phase(), Phase::gathering);
  job.tell("b", Stopped{7, {1}});
  EXPECT_EQ(job.last<Prepare>("b")->membership.epoch, 8u);
  EXPECT_EQ(job.last<Prepare>("b")->membership.restart_count, 2);
}

TEST(Coordinator, ASignalOnTheHostStopsTheWholeJobWithThatSignal) {
  CoordinatorDriver job(elastic(1, 2, 3));
  job.start({"a", "b"});
  job.tell("a", Leave{SIGINT, "the launcher on a got SIGINT"});
  EXPECT_EQ(job.last<Stop>("b")->signal, SIGINT);
  job.stopped({"a"});
  EXPECT_FALSE(job.last<Finish>("a"));
  job.stopped({"b"});
  EXPECT_EQ(job.last<Finish>("b")->code, 128 + SIGINT);
  EXPECT_EQ(job.last<Finish>("b")->reason, "the launcher on a got SIGINT");
}

TEST(Coordinator, ASignalDuringTheEndOfAFailedJobDoesNotHideTheFailure) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.tell("b", job.failure(1, 3));
  job.tell("a", Leave{SIGINT, "SIGINT"});
  job.stopped({"a", "b"});
  EXPECT_EQ(job.last<Finish>("a")->code, 3);
}

TEST(Coordinator, ASecondSignalOnTheHostDoesNotWaitForOtherNodes) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.tell("a", Leave{SIGINT, "SIGINT"});
  job.tell("a", Leave{SIGINT, "SIGINT"});
  ASSERT_TRUE(job.last<Finish>("a"));
  EXPECT_EQ(job.last<Finish>("b")->code, 128 + SIGINT);
}

TEST(Coordinator, ASignalOnTheHostBeforeAnyEpochEndsTheJob) {
  CoordinatorDriver job(fixed(2));
  job.join("a");
  job.tell("a", Leave{SIGTERM, "SIGTERM"});
  EXPECT_EQ(job.last<Finish>("a")->code, 128 + SIGTERM);
}

TEST(Coordinator, ASignalOnAnotherNodeEndsAFixedJobAndOnlyShrinksAnElasticOne) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.tell("b", Leave{SIGTERM, "the launcher on b got SIGTERM"});
  job.stopped({"a"});
  EXPECT_EQ(job.last<Finish>("a")->code, 128 + SIGTERM);

  CoordinatorDriver elastic_job(elastic(1, 2), 1s);
  elastic_job.start({"a", "b"});
  elastic_job.tell("b", Leave{SIGTERM, "the launcher on b got SIGTERM"});
  elastic_job.stopped({"a"});
  elastic_job.pass(2s, {"a"});
  EXPECT_EQ(elastic_job.phase(), Phase::preparing);
}

TEST(Coordinator, AHostWhoseOwnAgentGaveUpEndsTheJob) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.tell("a", Leave{0, "worker 7 cannot be killed"});
  job.close("a");
  job.stopped({"b"});
  job.pass(4s, {"b"});
  ASSERT_TRUE(job.last<Finish>("b"));
  EXPECT_EQ(job.last<Finish>("b")->reason, "worker 7 cannot be killed");
}

}  // namespace
}  // namespace lockstep
