#include "launch/agent.h"

#include <csignal>

#include <gtest/gtest.h>

#include "tests/launch/state_machine_drivers.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

std::vector<int> signals_of(const AgentDriver& node) {
  std::vector<int> signals;
  for (const SignalWorkers& each : node.asked<SignalWorkers>()) signals.push_back(each.signal);
  return signals;
}

TEST(Agent, ItConnectsAndSaysWhoItIs) {
  AgentDriver node;
  node.connect();
  EXPECT_EQ(node.asked<Connect>().size(), 1u);
  ASSERT_EQ(node.sent<Join>().size(), 1u);
  EXPECT_EQ(node.sent<Join>()[0].node, node.options().self);
  EXPECT_EQ(node.sent<Join>()[0].phase, NodePhase::idle);
}

TEST(Agent, WhatTheCoordinatorSaysAgainAndAgainIsSaidOnce) {
  AgentDriver node;
  node.connect();
  node.hear(Status{"--node-rank 1 is held by b"});
  node.hear(Status{"--node-rank 1 is held by b"});
  node.hear(Status{"1 of 2 nodes joined"});
  EXPECT_EQ(node.asked<AgentSays>().size(), 2u);
}

TEST(Agent, AFailedConnectionIsTriedAgain) {
  AgentDriver node;
  node.agent();
  node.disconnect();
  node.pass(400ms, false);
  EXPECT_EQ(node.asked<Connect>().size(), 1u);
  node.pass(500ms, false);
  EXPECT_EQ(node.asked<Connect>().size(), 2u);
}

TEST(Agent, WithoutACoordinatorItGivesUpAfterTheJoinTimeOutAndSaysWhere) {
  AgentDriver node;
  node.agent();
  node.disconnect();
  node.pass(599s, false);
  EXPECT_FALSE(node.finish());
  EXPECT_NE(node.asked<AgentSays>().back().text.find("waiting for the coordinator at a:29400"),
            std::string::npos);
  node.pass(3s, false);
  ASSERT_TRUE(node.finish());
  EXPECT_EQ(node.finish()->code, 1);
  EXPECT_NE(node.finish()->reason.find("no coordinator at a:29400 for 60"), std::string::npos);
}

TEST(Agent, WhereThereIsNoSignOfACoordinatorItGivesUpSooner) {
  AgentDriver node;
  node.options().start_timeout = 60s;
  node.agent();
  node.pass(5s, false);
  node.disconnect(Reach::nothing);
  node.pass(54s, false);
  EXPECT_FALSE(node.finish());
  node.pass(3s, false);
  ASSERT_TRUE(node.finish());
  EXPECT_EQ(node.finish()->code, 1);
  EXPECT_NE(node.finish()->reason.find("b found no coordinator at a:29400 for 6"),
            std::string::npos)
      << node.finish()->reason;
  EXPECT_NE(node.finish()->reason.find("--start-timeout"), std::string::npos);
}

TEST(Agent, ASignOfLifeOfItsMachineIsReasonToWaitOn) {
  AgentDriver node;
  node.options().start_timeout = 60s;
  node.agent();
  node.disconnect(Reach::nothing);
  node.pass(50s, false);
  node.disconnect(Reach::refused);
  node.pass(100s, false);
  EXPECT_FALSE(node.finish());
  node.disconnect(Reach::nothing);
  node.pass(1s, false);
  EXPECT_TRUE(node.finish());  // and since then there was none for as long
}

TEST(Agent, WhereASchedulerStartsAllNodesAPortWithoutListenerIsNoSign) {
  AgentDriver node;
  node.options().start_timeout = 60s;
  node.options().nodes_start_together = true;
  node.agent();
  node.disconnect(Reach::refused);
  node.pass(62s, false);
  EXPECT_TRUE(node.finish());
}

TEST(Agent, ACoordinatorThatWasThereIsAwaited) {
  AgentDriver node;
  node.options().start_timeout = 60s;
  node.connect();
  node.hear(Beat{});
  node.disconnect(Reach::nothing);
  node.pass(100s, false);
  EXPECT_FALSE(node.finish());
}

TEST(Agent, OnlyGroupRankZeroOpensTheStoreAndIsReadyAfterwards) {
  AgentDriver other;
  other.connect();
  other.hear(Prepare{other.membership(1, 1)});
  EXPECT_TRUE(other.asked<OpenStore>().empty());
  EXPECT_EQ(other.sent<Ready>().size(), 1u);

  AgentDriver first;
  first.connect();
  first.hear(Prepare{first.membership(1, 0)});
  EXPECT_EQ(first.asked<OpenStore>().size(), 1u);
  EXPECT_TRUE(first.sent<Ready>().empty());
  first.store_open(1, 29501);
  ASSERT_EQ(first.sent<Ready>().size(), 1u);
  EXPECT_EQ(first.sent<Ready>()[0].store_port, 29501);
}

TEST(Agent, WithALocalStoreEveryNodeOpensItsOwnEndAndGivesItToItsWorkers) {
  AgentDriver node;
  node.options().terms.local_store = true;
  node.connect();
  node.hear(Prepare{node.membership(1, 1)});
  EXPECT_EQ(node.asked<OpenStore>().size(), 1u);
  EXPECT_TRUE(node.sent<Ready>().empty());
  node.store_open(1, 4711);
  ASSERT_EQ(node.sent<Ready>().size(), 1u);
  node.hear(Start{1, "10.0.0.1", 29500});
  ASSERT_EQ(node.asked<StartWorkers>().size(), 1u);
  EXPECT_EQ(node.asked<StartWorkers>()[0].master_addr, "127.0.0.1");
  EXPECT_EQ(node.asked<StartWorkers>()[0].master_port, 4711);
}

TEST(Agent, AStoreThatOpensTooLateIsNotAnnounced) {
  AgentDriver node;
  node.connect();
  node.hear(Prepare{node.membership(1, 0)});
  node.hear(Stop{1, SIGTERM, ""});
  node.store_open(1, 29501);
  EXPECT_TRUE(node.sent<Ready>().empty());
}

TEST(Agent, WorkersStartOnceWhenTold) {
  AgentDriver node;
  node.run_workers(1);
  node.hear(Start{1, "10.0.0.1", 29500});
  node.hear(Prepare{node.membership(1)});
  ASSERT_EQ(node.asked<StartWorkers>().size(), 1u);
  EXPECT_EQ(node.asked<StartWorkers>()[0].master_addr, "10.0.0.1");
  EXPECT_EQ(node.asked<StartWorkers>()[0].membership, node.membership(1));
}

TEST(Agent, CommandsAboutAnOldEpochChangeNothing) {
  AgentDriver node;
  node.run_workers(3);
  node.forget_actions();
  node.hear(Stop{2, SIGTERM, ""});
  node.hear(Prepare{node.membership(2)});
  node.hear(Start{2, "10.0.0.9", 1});
  EXPECT_EQ(node.agent().phase(), NodePhase::running);
  EXPECT_TRUE(node.asked<SignalWorkers>().empty());
  EXPECT_TRUE(node.asked<StartWorkers>().empty());
}

TEST(Agent, SuccessIsReportedWhenAllWorkersHaveIt) {
  AgentDriver node(fixed(2), 2);
  node.run_workers(1);
  node.end_worker(0, 0);
  EXPECT_TRUE(node.sent<WorkersSucceeded>().empty());
  node.end_worker(1, 0);
  EXPECT_EQ(node.sent<WorkersSucceeded>().size(), 1u);
}

TEST(Agent, AFailureIsReportedWithItsRankAndItsAge) {
  AgentDriver node(fixed(2), 2);
  node.run_workers(1);
  node.end_worker(1, 139);
  ASSERT_EQ(node.sent<WorkerFailed>().size(), 1u);
  EXPECT_EQ(node.sent<WorkerFailed>()[0].rank, 3);
  EXPECT_EQ(node.sent<WorkerFailed>()[0].code, 139);
  node.pass(2s, true);
  node.disconnect();
  node.connect();
  ASSERT_EQ(node.sent<Join>().back().failures.size(), 1u);
  EXPECT_EQ(node.sent<Join>().back().failures[0].age, 2s);
}

TEST(Agent, AStopGivesWorkersTheirGraceThenKillsThem) {
  AgentDriver node(fixed(2), 2);
  node.options().grace = 5s;
  node.run_workers(1);
  node.hear(Stop{1, SIGINT, ""});
  EXPECT_EQ(signals_of(node), std::vector<int>{SIGINT});
  node.end_worker(0, 130);
  node.pass(4s, true);
  EXPECT_EQ(signals_of(node), std::vector<int>{SIGINT});
  node.pass(1500ms, true);
  EXPECT_EQ(signals_of(node), (std::vector<int>{SIGINT, SIGKILL}));
  EXPECT_TRUE(node.sent<Stopped>().empty());
  node.end_worker(1, 137);
  EXPECT_EQ(node.asked<EndLeftovers>().size(), 1u);
  EXPECT_TRUE(node.sent<Stopped>().empty()) << "what workers left behind may still be there";
  node.all_gone();
  ASSERT_EQ(node.sent<Stopped>().size(), 1u);
  EXPECT_EQ(node.sent<Stopped>()[0].stopped_ranks, (std::vector<int>{2, 3}));
  EXPECT_TRUE(node.sent<WorkerFailed>().empty()) << "they were stopped on purpose";
}

TEST(Agent, WhatAWorkerHasStartedGetsTheRestOfTheGracePeriodToo) {
  AgentDriver node;
  node.options().grace = 5s;
  node.run_workers(1);
  node.hear(Stop{1, SIGTERM, ""});
  node.end_worker(0, 143);  // a shell, say, whose program is still saving
  ASSERT_EQ(node.asked<EndLeftovers>().size(), 1u);
  EXPECT_TRUE(node.asked<EndLeftovers>()[0].gently);
  node.pass(5500ms, true);
  ASSERT_EQ(node.asked<EndLeftovers>().size(), 2u);
  EXPECT_FALSE(node.asked<EndLeftovers>()[1].gently);
}

TEST(Agent, ExitCode75OfAWorkerThatWasStoppedIsPassedOn) {
  AgentDriver node;
  node.run_workers(1);
  node.signal(SIGTERM);
  node.end_worker(0, 75);
  node.all_gone();
  EXPECT_TRUE(node.sent<Stopped>().back().resume);
  EXPECT_EQ(node.finish()->code, 75);
}

TEST(Agent, StandingStillIsNotTakenForTheCoordinatorsSilence) {
  AgentDriver node;
  node.run_workers(1);
  node.jump(60s);
  EXPECT_TRUE(signals_of(node).empty());
  node.pass(8s, false);
  EXPECT_EQ(signals_of(node), std::vector<int>{SIGTERM});
}

TEST(Agent, AStopWhilePreparedIsAnsweredToo) {
  AgentDriver node;
  node.connect();
  node.hear(Prepare{node.membership(1)});
  node.hear(Stop{1, SIGTERM, ""});
  node.all_gone();
  ASSERT_EQ(node.sent<Stopped>().size(), 1u);
  EXPECT_EQ(node.sent<Stopped>()[0].epoch, 1u);
  EXPECT_EQ(node.agent().phase(), NodePhase::idle);
}

TEST(Agent, AStopOfAnEpochItNeverHeardOfIsAnsweredForThatEpoch) {
  AgentDriver idle;
  idle.connect();
  idle.hear(Stop{4, SIGTERM, ""});
  EXPECT_EQ(idle.sent<Stopped>().back().epoch, 4u);

  AgentDriver busy;
  busy.run_workers(3);
  busy.hear(Stop{4, SIGTERM, ""});
  busy.end_worker(0, 143);
  busy.all_gone();
  EXPECT_EQ(busy.sent<Stopped>().back().epoch, 4u);
}

TEST(Agent, AShortBreakOfTheConnectionKeepsTheWorkers) {
  AgentDriver node;
  node.run_workers(1);
  node.pass(3s, true);
  node.disconnect();
  node.pass(1s, false);
  node.connect();
  EXPECT_EQ(node.sent<Join>().back().phase, NodePhase::running);
  EXPECT_EQ(node.sent<Join>().back().epoch, 1u);
  node.pass(20s, true);
  EXPECT_TRUE(node.asked<SignalWorkers>().empty());
}

TEST(Agent, ASilentCoordinatorIsConnectedToAnew) {
  AgentDriver node;
  node.run_workers(1);
  node.pass(8s, false);
  EXPECT_EQ(node.asked<Disconnect>().size(), 1u);
  EXPECT_EQ(node.asked<Connect>().size(), 2u);
}

TEST(Agent, CutOffItStopsItsWorkersAndAFixedJobWithoutRestartsEnds) {
  AgentDriver node;
  node.run_workers(1);
  node.disconnect();
  node.pass(8s, false);
  EXPECT_EQ(signals_of(node), std::vector<int>{SIGTERM});
  EXPECT_FALSE(node.finish());
  node.end_worker(0, 143);
  node.all_gone();
  ASSERT_TRUE(node.finish());
  EXPECT_EQ(node.finish()->code, 1);
  EXPECT_NE(node.finish()->reason.find("lost the coordinator at a:29400"), std::string::npos);
}

TEST(Agent, SilenceBeforeAConnectionBrokeCountsAsBeingCutOff) {
  AgentDriver node(elastic(1, 2));
  node.run_workers(1);
  node.pass(5s, false);
  node.disconnect();
  node.pass(2500ms, false);
  EXPECT_EQ(signals_of(node), std::vector<int>{SIGTERM});
}

TEST(Agent, CutOffFromAnElasticJobItStopsAndWaitsForTheNextEpoch) {
  AgentDriver node(elastic(1, 2));
  node.run_workers(1);
  node.disconnect();
  node.pass(8s, false);
  node.end_worker(0, 143);
  node.all_gone();
  node.pass(60s, false);
  EXPECT_FALSE(node.finish());
  node.connect();
  EXPECT_EQ(node.sent<Join>().back().phase, NodePhase::idle);
  EXPECT_EQ(node.sent<Join>().back().epoch, 1u);
  node.hear(Prepare{node.membership(2)});
  EXPECT_EQ(node.agent().phase(), NodePhase::prepared);
}

TEST(Agent, TheEndIsConfirmedAndCarriedOutWhenNoWorkerIsLeft) {
  AgentDriver node;
  node.run_workers(1);
  node.hear(Finish{.code = 3, .reason = "rank 0 failed", .failures = {}, .stopped_ranks = {}});
  EXPECT_EQ(node.sent<Leave>().size(), 1u);
  EXPECT_FALSE(node.finish());
  node.end_worker(0, 143);
  node.all_gone();
  ASSERT_TRUE(node.finish());
  EXPECT_EQ(node.finish()->code, 3);
  EXPECT_EQ(node.agent().next_deadline(), Time::max());
}

TEST(Agent, LeftoversOfSuccessfulWorkersAreEndedToo) {
  AgentDriver node;
  node.run_workers(1);
  node.end_worker(0, 0);
  node.hear(Finish{});
  EXPECT_EQ(node.asked<EndLeftovers>().size(), 1u);
  EXPECT_FALSE(node.finish());
  node.all_gone();
  EXPECT_EQ(node.finish()->code, 0);
}

TEST(Agent, ARefusalStopsWorkersFirst) {
  AgentDriver node;
  node.run_workers(1);
  node.hear(Refused{"no"});
  EXPECT_FALSE(node.finish());
  EXPECT_EQ(signals_of(node), std::vector<int>{SIGTERM});
  node.end_worker(0, 143);
  node.all_gone();
  EXPECT_EQ(node.finish()->reason, "refused by the coordinator at a:29400: no");
}

TEST(Agent, ASignalStopsThisNodeAndTellsTheCoordinator) {
  AgentDriver node;
  node.run_workers(1);
  node.signal(SIGINT);
  ASSERT_EQ(node.sent<Leave>().size(), 1u);
  EXPECT_EQ(node.sent<Leave>()[0].signal, SIGINT);
  EXPECT_EQ(signals_of(node), std::vector<int>{SIGINT});
  node.disconnect();
  node.pass(3s, false);
  EXPECT_EQ(node.asked<Connect>().size(), 1u) << "it goes, so it does not join again";
  node.end_worker(0, 130);
  node.all_gone();
  EXPECT_EQ(node.finish()->code, 128 + SIGINT);
}

TEST(Agent, ASignalWithoutWorkersEndsAtOnce) {
  AgentDriver node;
  node.connect();
  node.signal(SIGTERM);
  EXPECT_EQ(node.finish()->code, 128 + SIGTERM);
}

TEST(Agent, ASecondSignalKillsAtOnce) {
  AgentDriver node;
  node.run_workers(1);
  node.signal(SIGINT);
  node.signal(SIGINT);
  EXPECT_EQ(signals_of(node), (std::vector<int>{SIGINT, SIGKILL}));
}

TEST(Agent, OnTheHostTheCoordinatorHasTheLastWord) {
  AgentDriver node(fixed(2), 1, /*hosts=*/true);
  node.run_workers(1);
  node.signal(SIGINT);
  node.hear(Stop{1, SIGINT, ""});
  node.end_worker(0, 130);
  node.all_gone();
  EXPECT_FALSE(node.finish()) << "other nodes are still stopping";
  node.hear(Finish{.code = 130, .reason = "SIGINT on b", .failures = {}, .stopped_ranks = {0, 1}});
  ASSERT_TRUE(node.finish());
  EXPECT_EQ(node.finish()->stopped_ranks, (std::vector<int>{0, 1}));
}

TEST(Agent, OnTheHostASecondSignalAsksTheCoordinatorNotToWait) {
  AgentDriver node(fixed(2), 1, /*hosts=*/true);
  node.run_workers(1);
  node.signal(SIGINT);
  node.signal(SIGINT);
  EXPECT_EQ(node.sent<Leave>().size(), 2u);
}

TEST(Agent, ASignalAfterTheEndWasDecidedDoesNotChangeIt) {
  AgentDriver node;
  node.run_workers(1);
  node.end_worker(0, 0);
  node.hear(Finish{});
  node.signal(SIGINT);
  node.all_gone();
  EXPECT_EQ(node.finish()->code, 0);
}

TEST(Agent, ProcessesThatCannotBeKilledAreNamedAndAfterAMinuteEndTheNode) {
  AgentDriver node;
  node.run_workers(1);
  node.hear(Stop{1, SIGTERM, ""});
  node.stuck();
  EXPECT_EQ(node.asked<AgentSays>().back().text, "worker 7 cannot be killed");
  node.pass(55s, true);
  EXPECT_FALSE(node.finish());
  node.pass(6s, true);
  EXPECT_EQ(node.sent<Leave>().back().reason, "worker 7 cannot be killed");
  EXPECT_EQ(node.finish()->reason, "worker 7 cannot be killed");
  EXPECT_EQ(node.finish()->code, 1);
}

TEST(Agent, WhatIsBrokenOnThisNodeEndsItAndIsTold) {
  AgentDriver node;
  node.connect();
  node.hear(Prepare{node.membership(1, 0)});
  node.broken();
  EXPECT_EQ(node.sent<Leave>().back().reason, "the store's port is taken");
  node.all_gone();
  EXPECT_EQ(node.finish()->code, 1);
}

}  // namespace
}  // namespace lockstep
