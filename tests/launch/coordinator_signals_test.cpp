#include <csignal>

#include <gtest/gtest.h>

#include "tests/launch/state_machine_drivers.h"

using namespace lockstep;
using namespace std::chrono_literals;

TEST(CoordinatorSignals, what_one_node_gets_goes_to_all) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  const PassSignal warning{.signal = SIGUSR1, .time_left = 60s};
  job.tell("b", warning);
  EXPECT_EQ(job.last<PassSignal>("a"), warning);
  EXPECT_EQ(job.last<PassSignal>("b"), warning);
  EXPECT_NE(job.said().find("ends the job in 60 s"), std::string::npos) << job.said();
}

TEST(CoordinatorSignals, a_warning_that_all_nodes_get_is_passed_on_once) {
  CoordinatorDriver job(fixed(3));
  job.start({"a", "b", "c"});
  job.tell("c", PassSignal{.signal = SIGUSR1, .time_left = 60s});
  job.forget_messages();
  job.pass(1s, {"a", "b", "c"});
  job.tell("a", PassSignal{.signal = SIGUSR1, .time_left = 59s});
  job.tell("b", PassSignal{.signal = SIGUSR1, .time_left = 59s});
  EXPECT_FALSE(job.last<PassSignal>("a"));
}

TEST(CoordinatorSignals, a_second_one_from_the_same_node_is_another_one) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.tell("b", PassSignal{.signal = SIGUSR2});
  job.forget_messages();
  job.tell("b", PassSignal{.signal = SIGUSR2});
  EXPECT_EQ(job.last<PassSignal>("a"), PassSignal{.signal = SIGUSR2});
}

TEST(CoordinatorSignals, later_than_a_warning_takes_to_spread_it_is_another_one) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.tell("b", PassSignal{.signal = SIGUSR1});
  job.pass(11s, {"a", "b"});
  job.forget_messages();
  job.tell("a", PassSignal{.signal = SIGUSR1});
  EXPECT_EQ(job.last<PassSignal>("b"), PassSignal{.signal = SIGUSR1});
}

TEST(CoordinatorSignals, who_knows_the_time_may_say_it_after_the_others) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  job.tell("b", PassSignal{.signal = SIGUSR1});
  EXPECT_EQ(job.last<PassSignal>("a"), PassSignal{.signal = SIGUSR1});
  job.tell("a", PassSignal{.signal = SIGUSR1, .time_left = 58s});
  const PassSignal only_time{.signal = 0, .time_left = 58s};
  EXPECT_EQ(job.last<PassSignal>("a"), only_time);
  EXPECT_EQ(job.last<PassSignal>("b"), only_time);
}

TEST(CoordinatorSignals, who_comes_later_hears_how_much_is_left) {
  CoordinatorDriver job(fixed(2, 1));
  job.start({"a", "b"});
  job.tell("a", PassSignal{.signal = SIGUSR1, .time_left = 60s});
  job.close("b");
  job.pass(1s, {"a"});
  job.rejoin("b", 12, NodePhase::running, 1);
  const PassSignal rest{.signal = 0, .time_left = 59s};
  EXPECT_EQ(job.last<PassSignal>(12), rest);
}

TEST(CoordinatorSignals, the_coordinators_own_process_may_be_warned) {
  CoordinatorDriver job(fixed(2));
  job.start({"a", "b"});
  const auto actions =
      job.coordinator().on_signal({.signal = SIGUSR1, .time_left = 60s}, job.now());
  const auto sent = std::ranges::count_if(
      actions, [](const CoordinatorAction& each) { return std::holds_alternative<SendTo>(each); });
  EXPECT_EQ(sent, 2);
}

TEST(AgentSignals, they_take_the_way_over_the_coordinator) {
  AgentDriver node;
  node.run_workers(1);
  const PassSignal warning{.signal = SIGUSR1, .time_left = 60s};
  node.perform(node.agent().on_signal_for_workers(warning, node.now()));
  EXPECT_EQ(node.sent<PassSignal>(), std::vector{warning});
  EXPECT_TRUE(node.asked<TellWorkers>().empty());
  node.hear(warning);
  ASSERT_EQ(node.asked<TellWorkers>().size(), 1u);
  EXPECT_EQ(node.asked<TellWorkers>()[0].signal, SIGUSR1);
  EXPECT_EQ(node.asked<TellWorkers>()[0].time_left, Time(60s));
}

TEST(AgentSignals, a_node_that_is_cut_off_tells_its_own) {
  AgentDriver node;
  node.run_workers(1);
  node.disconnect();
  node.perform(node.agent().on_signal_for_workers({.signal = SIGUSR1}, node.now()));
  EXPECT_EQ(node.asked<TellWorkers>().size(), 1u);
}
