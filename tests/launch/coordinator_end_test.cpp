// Who runs the coordinator asks for the end of the job.
#include <csignal>

#include <gtest/gtest.h>

#include "tests/launch/state_machine_drivers.h"

using namespace lockstep;
using namespace std::chrono_literals;

TEST(CoordinatorEnd, a_signal_stops_all_nodes_and_is_the_jobs_code) {
  CoordinatorDriver job(fixed(2, 3));
  job.start({"b", "c"});
  job.request_end(SIGINT, "the head got SIGINT");
  EXPECT_EQ(job.last<Stop>("b")->signal, SIGINT);
  EXPECT_EQ(job.last<Stop>("c")->signal, SIGINT);
  EXPECT_EQ(job.phase(), Coordinator::Phase::stopping);
  job.stopped({"b", "c"});
  ASSERT_EQ(job.phase(), Coordinator::Phase::finished);
  EXPECT_EQ(job.coordinator().outcome().code, 128 + SIGINT);
  EXPECT_EQ(job.coordinator().outcome().reason, "the head got SIGINT");
  EXPECT_EQ(job.last<Finish>("c")->code, 128 + SIGINT);
}

TEST(CoordinatorEnd, before_the_job_has_begun_it_ends_at_once) {
  CoordinatorDriver job(fixed(2, 3));
  job.join("b");
  job.request_end(0, "node c could not be started");
  EXPECT_EQ(job.phase(), Coordinator::Phase::finished);
  EXPECT_EQ(job.last<Finish>("b")->reason, "node c could not be started");
  EXPECT_EQ(job.last<Finish>("b")->code, 1);
}

TEST(CoordinatorEnd, asked_twice_it_kills_and_three_times_it_waits_for_nobody) {
  CoordinatorDriver job(fixed(2));
  job.start({"b", "c"});
  job.request_end(SIGTERM, "stop");
  job.stopped({"b"});
  job.forget_messages();
  job.request_end(SIGTERM, "stop");
  EXPECT_FALSE(job.last<Stop>("b"));
  EXPECT_EQ(job.last<Stop>("c")->signal, SIGKILL);
  EXPECT_EQ(job.phase(), Coordinator::Phase::stopping);
  job.request_end(SIGTERM, "stop");
  EXPECT_EQ(job.phase(), Coordinator::Phase::finished);
  EXPECT_EQ(job.coordinator().outcome().code, 128 + SIGTERM);
}

TEST(CoordinatorEnd, a_failure_that_came_first_stays_the_cause) {
  CoordinatorDriver job(fixed(2));
  job.start({"b", "c"});
  job.tell("b", job.failure(0, 7));
  job.request_end(SIGTERM, "stop");
  job.stopped({"b", "c"});
  EXPECT_EQ(job.coordinator().outcome().code, 7);
}

TEST(CoordinatorEnd, a_restart_that_was_under_way_does_not_happen) {
  CoordinatorDriver job(fixed(2, 3));
  job.start({"b", "c"});
  job.tell("b", job.failure(0, 7));
  job.request_end(SIGTERM, "stop");
  job.stopped({"b", "c"});
  EXPECT_EQ(job.phase(), Coordinator::Phase::finished);
  EXPECT_EQ(job.coordinator().outcome().code, 128 + SIGTERM);
}

TEST(AgentEnd, asked_to_kill_while_it_stops_it_does_not_wait) {
  AgentDriver node;
  node.run_workers(1);
  node.hear(Stop{1, SIGTERM, "stop"});
  node.forget_actions();
  node.hear(Stop{1, SIGTERM, "stop"});
  EXPECT_TRUE(node.asked<SignalWorkers>().empty());
  node.hear(Stop{1, SIGKILL, "stop"});
  ASSERT_EQ(node.asked<SignalWorkers>().size(), 1u);
  EXPECT_EQ(node.asked<SignalWorkers>()[0].signal, SIGKILL);
}

TEST(AgentEnd, where_no_coordinator_can_come_back_none_is_awaited) {
  AgentDriver node(fixed(2, 5));
  node.options().coordinator_may_return = false;
  node.run_workers(1);
  node.disconnect();
  node.pass(8s, /*hears=*/false);
  node.end_worker(0, 143);
  node.all_gone();
  ASSERT_TRUE(node.finish());
  EXPECT_EQ(node.finish()->code, 1);
}
