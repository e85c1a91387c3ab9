#include <gtest/gtest.h>

#include <csignal>

#include "state_machine_drivers.h"

using namespace lockstep;

namespace {

// NodeB b with ranks 2 and 3 of four, which have state.
struct NodeB : AgentDriver {
  explicit NodeB(JobTerms terms = fixed(2)) : AgentDriver(terms, /*workers=*/2) {
    run_workers(1);
    for (const int local_rank : {0, 1}) recovers(local_rank, 1, 0);
    forget_actions();
  }

  void recovers(int local_rank, Epoch epoch, std::int64_t step, bool able = true) {
    perform(agent().on_worker_recovers(
        local_rank, {.epoch = epoch, .rank = 0, .step = step, .able = able}, now()));
  }
  void leaves(int local_rank) { perform(agent().on_worker_leaving(local_rank, now())); }
  void dies(int local_rank, Epoch started) {
    perform(agent().on_worker_end({.epoch = started,
                                   .local_rank = local_rank,
                                   .code = 128 + SIGKILL,
                                   .details = "{}",
                                   .signal = SIGKILL,
                                   .progress = "at step 3"},
                                  now()));
  }
  void ends_well(int local_rank, Epoch started) {
    perform(agent().on_worker_end(
        {.epoch = started, .local_rank = local_rank, .code = 0, .details = ""}, now()));
  }
  void reform(Epoch epoch, std::vector<int> replaced, int group_rank = 1) {
    hear(Prepare{.membership = membership(epoch, group_rank),
                 .carries_over = true,
                 .replaced = std::move(replaced),
                 .reason = "somebody died"});
  }
  void reform_without(Epoch epoch, std::vector<int> left_out, std::vector<int> replaced = {}) {
    Membership places = membership(epoch);
    places.left_out = std::move(left_out);
    hear(Prepare{.membership = places,
                 .carries_over = true,
                 .replaced = std::move(replaced),
                 .reason = "somebody died"});
  }
  NodePhase phase() { return agent().phase(); }
};

}  // namespace

TEST(AgentRecovery, tells_who_can_be_carried_over_and_who_cannot_any_more) {
  NodeB node;
  node.recovers(1, 1, 40);
  ASSERT_EQ(node.sent<RankRecovers>().size(), 1u);
  EXPECT_EQ(node.sent<RankRecovers>()[0], (RankRecovers{.epoch = 1, .rank = 3, .step = 40}));
  node.leaves(1);
  EXPECT_FALSE(node.sent<RankRecovers>().back().able);
  node.recovers(0, 2, 40);  // of an epoch that is not this one
  EXPECT_EQ(node.sent<RankRecovers>().size(), 2u);
}

TEST(AgentRecovery, revokes_the_world_of_survivors_and_is_ready) {
  NodeB node;
  node.reform(2, {0});
  EXPECT_EQ(node.phase(), NodePhase::reforming);
  ASSERT_EQ(node.asked<RevokeWorkers>().size(), 1u);
  EXPECT_EQ(node.asked<RevokeWorkers>()[0].survivors, (std::vector{0, 1}));
  EXPECT_EQ(node.asked<RevokeWorkers>()[0].lost, std::vector{0});
  EXPECT_EQ(node.sent<Ready>().back().epoch, 2u);
  node.hear(Start{2, "10.0.0.1", 29501});
  EXPECT_EQ(node.phase(), NodePhase::running);
  ASSERT_EQ(node.asked<StartWorkers>().size(), 1u);
  EXPECT_EQ(node.asked<StartWorkers>()[0].replaced, std::vector{0});
  EXPECT_EQ(node.asked<StartWorkers>()[0].master_port, 29501);
  EXPECT_TRUE(node.asked<SignalWorkers>().empty());
  // They die later as the workers of the first epoch that they are, and it counts in the second.
  node.dies(0, 1);
  ASSERT_EQ(node.sent<WorkerFailed>().size(), 1u);
  EXPECT_EQ(node.sent<WorkerFailed>()[0].epoch, 2u);
  EXPECT_EQ(node.sent<WorkerFailed>()[0].signal, SIGKILL);
  EXPECT_EQ(node.sent<WorkerFailed>()[0].progress, "at step 3");
}

TEST(AgentRecovery, starts_what_was_lost_here) {
  NodeB node;
  node.dies(1, 1);
  node.reform(2, {3});
  EXPECT_EQ(node.asked<RevokeWorkers>().back().survivors, std::vector{0});
  EXPECT_TRUE(node.asked<RevokeWorkers>().back().killed.empty());
  node.hear(Start{2, "10.0.0.1", 29501});
  // The new one is of epoch 2: an end of the old one is none of it.
  node.dies(1, 1);
  EXPECT_EQ(node.sent<WorkerFailed>().size(), 1u);
  node.dies(1, 2);
  EXPECT_EQ(node.sent<WorkerFailed>().size(), 2u);
}

TEST(AgentRecovery, kills_a_worker_that_is_replaced_and_is_ready_when_it_is_gone) {
  NodeB node;
  node.reform(2, {2});
  EXPECT_EQ(node.asked<RevokeWorkers>().back().killed, std::vector{0});
  EXPECT_TRUE(node.sent<Ready>().empty());
  node.dies(0, 1);
  EXPECT_EQ(node.sent<Ready>().size(), 1u);
  EXPECT_TRUE(node.sent<WorkerFailed>().empty());
}

TEST(AgentRecovery, waits_for_the_store_where_it_opens_one) {
  NodeB node;
  node.reform(2, {3}, /*group_rank=*/0);
  EXPECT_EQ(node.asked<OpenStore>().size(), 1u);
  EXPECT_TRUE(node.sent<Ready>().empty());
  node.hear(Start{2, "10.0.0.1", 29501});  // somebody's mistake
  EXPECT_EQ(node.phase(), NodePhase::reforming);
  node.store_open(2, 29501);
  ASSERT_EQ(node.sent<Ready>().size(), 1u);
  EXPECT_EQ(node.sent<Ready>().back().store_port, 29501);
}

TEST(AgentRecovery, a_death_that_the_coordinator_did_not_know_of_is_told_again) {
  NodeB node;
  node.dies(1, 1);
  node.reform(2, {0});
  ASSERT_EQ(node.sent<WorkerFailed>().size(), 2u);
  EXPECT_EQ(node.sent<WorkerFailed>()[1].epoch, 2u);
  EXPECT_EQ(node.sent<WorkerFailed>()[1].rank, 3);
}

TEST(AgentRecovery, goes_from_one_epoch_that_is_being_formed_to_the_next) {
  NodeB node;
  node.reform(2, {0});
  node.reform(3, {0, 1});
  node.reform(2, {0});  // once more, and late
  EXPECT_EQ(node.agent().epoch(), 3u);
  node.hear(Start{2, "10.0.0.1", 29501});
  EXPECT_EQ(node.phase(), NodePhase::reforming);
  node.hear(Start{3, "10.0.0.1", 29502});
  EXPECT_EQ(node.phase(), NodePhase::running);
}

TEST(AgentRecovery, refuses_where_a_worker_has_ended_or_is_about_to) {
  NodeB ended;
  ended.ends_well(0, 1);
  ended.reform(2, {0});
  ASSERT_EQ(ended.sent<CannotReform>().size(), 1u);
  EXPECT_EQ(ended.sent<CannotReform>()[0].reason, "rank 2 has already ended well");

  NodeB leaving;
  leaving.leaves(1);
  leaving.reform(2, {0});
  EXPECT_EQ(leaving.sent<CannotReform>().size(), 1u);

  NodeB meanwhile;
  meanwhile.reform(2, {3}, /*group_rank=*/0);
  meanwhile.ends_well(0, 1);
  EXPECT_EQ(meanwhile.sent<CannotReform>().size(), 1u);
  meanwhile.disconnect();
  meanwhile.connect();
  EXPECT_EQ(meanwhile.sent<CannotReform>().size(), 2u);
}

TEST(AgentRecovery, tells_of_a_worker_that_had_left_when_the_new_world_began) {
  NodeB node;
  node.reform(2, {0});
  node.hear(Start{2, "10.0.0.1", 29501});
  node.recovers(0, 2, 40);
  node.leaves(1);  // the revocation came too late for it
  ASSERT_EQ(node.sent<CannotReform>().size(), 1u);
  EXPECT_EQ(node.sent<CannotReform>()[0].reason, "rank 3 cannot be carried over");
  node.leaves(0);  // it has gone on before that
  node.ends_well(0, 1);
  node.ends_well(1, 1);
  EXPECT_TRUE(node.sent<WorkersSucceeded>().empty());
  node.disconnect();
  node.connect();
  EXPECT_EQ(node.sent<CannotReform>().back().reason, "rank 3 has already ended well");
  EXPECT_EQ(node.sent<Join>().back().phase, NodePhase::running);
}

TEST(AgentRecovery, workers_that_went_on_may_end) {
  NodeB node;
  node.reform(2, {0});
  node.hear(Start{2, "10.0.0.1", 29501});
  for (const int local_rank : {0, 1}) {
    node.recovers(local_rank, 2, 40);
    node.leaves(local_rank);
    node.ends_well(local_rank, 1);
  }
  EXPECT_TRUE(node.sent<CannotReform>().empty());
  EXPECT_EQ(node.sent<WorkersSucceeded>().size(), 1u);
}

TEST(AgentRecovery, says_where_it_stands_when_it_comes_back) {
  NodeB node;
  node.reform(2, {0});
  node.disconnect();
  node.connect();
  const Join join = node.sent<Join>().back();
  EXPECT_EQ(join.phase, NodePhase::reforming);
  EXPECT_TRUE(join.ready);
  node.hear(Start{2, "10.0.0.1", 29501});
  node.recovers(0, 2, 5);
  node.disconnect();
  node.connect();
  ASSERT_EQ(node.sent<Join>().back().recovers.size(), 1u);
  EXPECT_EQ(node.sent<Join>().back().recovers[0].step, 5);
}

TEST(AgentRecovery, a_worker_that_is_left_out_is_killed_and_not_awaited) {
  NodeB node;
  node.reform_without(2, {1, 2});
  const RevokeWorkers revoke = node.asked<RevokeWorkers>().back();
  EXPECT_EQ(revoke.lost, (std::vector{1, 2}));
  EXPECT_EQ(revoke.left_out, (std::vector{1, 2}));
  EXPECT_EQ(revoke.killed, std::vector{0});
  EXPECT_EQ(revoke.survivors, std::vector{1});
  EXPECT_TRUE(node.sent<Ready>().empty());
  node.dies(0, 1);
  EXPECT_EQ(node.sent<Ready>().size(), 1u);
  EXPECT_TRUE(node.sent<WorkerFailed>().empty());
  node.hear(Start{2, "10.0.0.1", 29501});
  const StartWorkers start = node.asked<StartWorkers>().back();
  EXPECT_TRUE(start.carries_over);
  EXPECT_TRUE(start.replaced.empty());
  EXPECT_EQ(start.membership.left_out, (std::vector{1, 2}));
  // The node has succeeded when those that are there have.
  node.recovers(1, 2, 40);
  node.leaves(1);
  node.ends_well(1, 1);
  EXPECT_EQ(node.sent<WorkersSucceeded>().size(), 1u);
  EXPECT_TRUE(node.sent<CannotReform>().empty());
}

TEST(AgentRecovery, a_place_that_was_left_out_is_filled_again) {
  NodeB node;
  node.dies(0, 1);
  node.reform_without(2, {2});
  node.hear(Start{2, "10.0.0.1", 29501});
  node.recovers(1, 2, 40);
  node.reform_without(3, {}, {2});
  const RevokeWorkers revoke = node.asked<RevokeWorkers>().back();
  EXPECT_TRUE(revoke.lost.empty());
  EXPECT_TRUE(revoke.left_out.empty());
  EXPECT_EQ(revoke.rejoins, std::vector{2});
  EXPECT_EQ(revoke.survivors, std::vector{1});
  node.hear(Start{3, "10.0.0.1", 29502});
  EXPECT_EQ(node.asked<StartWorkers>().back().replaced, std::vector{2});
  node.dies(0, 3);
  EXPECT_EQ(node.sent<WorkerFailed>().back().rank, 2);
}

TEST(AgentRecovery, begins_among_others_that_live_on_elsewhere) {
  AgentDriver node(fixed(2), /*workers=*/2);
  node.connect();
  const Prepare prepare{.membership = node.membership(5),
                        .carries_over = true,
                        .replaced = {2, 3},
                        .reason = "ranks 2, 3 join again"};
  Prepare some = prepare;
  some.replaced = {2};  // it has no worker that could live on as rank 3
  node.hear(some);
  EXPECT_EQ(node.agent().phase(), NodePhase::idle);
  node.hear(prepare);
  EXPECT_EQ(node.agent().phase(), NodePhase::reforming);
  EXPECT_EQ(node.sent<Ready>().size(), 1u);
  EXPECT_TRUE(node.asked<RevokeWorkers>().empty());
  node.hear(Start{5, "10.0.0.1", 29501});
  ASSERT_EQ(node.asked<StartWorkers>().size(), 1u);
  const StartWorkers start = node.asked<StartWorkers>().back();
  EXPECT_TRUE(start.carries_over);
  EXPECT_TRUE(start.begins);
  EXPECT_EQ(start.replaced, (std::vector{2, 3}));
  for (const int local_rank : {0, 1}) {
    node.perform(node.agent().on_worker_recovers(
        local_rank, {.epoch = 5, .rank = 0, .step = 40, .able = true}, node.now()));
    node.end_worker(local_rank, 0);
  }
  EXPECT_EQ(node.sent<WorkersSucceeded>().size(), 1u);
}

TEST(AgentRecovery, tells_of_a_worker_that_could_not_be_started) {
  NodeB node;
  node.perform(node.agent().on_worker_end({.epoch = 1,
                                           .local_rank = 0,
                                           .code = 127,
                                           .details = "{}",
                                           .signal = 0,
                                           .progress = "",
                                           .started = false},
                                          node.now()));
  EXPECT_FALSE(node.sent<WorkerFailed>().back().started);
}

TEST(AgentRecovery, a_stop_ends_it) {
  NodeB node;
  node.reform(2, {0});
  node.hear(Stop{2, SIGTERM, "restart"});
  EXPECT_EQ(node.phase(), NodePhase::stopping);
  EXPECT_EQ(node.asked<SignalWorkers>().size(), 1u);
  node.dies(0, 1);
  node.dies(1, 1);
  node.all_gone();
  EXPECT_EQ(node.sent<Stopped>().back().epoch, 2u);
}
