#include "launch/worker_hub.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "control/agent_client.h"
#include "control/frame.h"
#include "core/unix_socket.h"
#include "lockstep/error.h"
#include "worker_hub_support.h"

using namespace lockstep;
using lockstep::testing::TemporaryFolder;
using std::chrono::milliseconds;

TEST(WorkerHub, knows_the_step_and_phase_that_a_worker_reports) {
  EventLoop loop;
  Hub hub(loop);
  AgentClient client(options_for(hub));
  client.report(41, "forward");
  client.report(42, "backward");
  ASSERT_TRUE(eventually(loop, [&] { return hub.hub->connected(3); }));
  EXPECT_EQ(hub.events.at(0), "hello 3 test");
  ASSERT_TRUE(eventually(loop, [&] { return hub.hub->state(3)->heartbeat.step == 42; }));
  const WorkerState state = *hub.hub->state(3);
  EXPECT_EQ(state.heartbeat.phase, "backward");
  EXPECT_LE(state.step_since, state.heard);
  EXPECT_EQ(hub.hub->state(0), nullptr);
}

TEST(WorkerHub, heartbeats_go_on_while_the_program_reports_nothing_and_their_age_grows) {
  EventLoop loop;
  Hub hub(loop);
  AgentClient client(options_for(hub));
  client.report(1, "stuck");
  ASSERT_TRUE(eventually(loop, [&] { return hub.heartbeats >= 5; }));
  EXPECT_GE(hub.hub->state(3)->heartbeat.age, milliseconds(20));
  EXPECT_EQ(hub.hub->state(3)->heartbeat.step, 1);
}

TEST(WorkerHub, a_thousand_reports_are_a_few_messages) {
  EventLoop loop;
  Hub hub(loop);
  AgentClient client(options_for(hub));
  ASSERT_TRUE(eventually(loop, [&] { return hub.heartbeats > 0; }));
  const int before = hub.heartbeats;
  const auto start = hub.last_heartbeat;
  for (int step = 0; step < 1000; ++step) client.report(step, "step");
  ASSERT_TRUE(eventually(loop, [&] { return hub.hub->state(3)->heartbeat.step == 999; }));
  const auto intervals = (EventLoop::Clock::now() - start) / milliseconds(10);
  EXPECT_LE(hub.heartbeats - before, intervals + 2);
}

TEST(WorkerHub, tells_a_worker_to_stop_and_how_much_time_is_left) {
  EventLoop loop;
  Hub hub(loop);
  AgentClient client(options_for(hub));
  std::atomic<int> called = 0;
  client.on_stop([&] { ++called; });
  ASSERT_TRUE(eventually(loop, [&] { return hub.hub->connected(3); }));
  EXPECT_FALSE(client.stop_requested());
  EXPECT_EQ(client.stop_deadline(), std::nullopt);
  EXPECT_TRUE(hub.hub->stop(3, "SIGTERM", milliseconds(30000)));
  EXPECT_FALSE(hub.hub->stop(4, "SIGTERM", milliseconds(30000)));
  ASSERT_TRUE(eventually(loop, [&] { return called == 1; }));
  EXPECT_TRUE(client.stop_requested());
  EXPECT_EQ(client.stop_reason(), "SIGTERM");
  EXPECT_LE(*client.stop_deadline(), milliseconds(30000));
  EXPECT_GT(*client.stop_deadline(), milliseconds(15000));
  bool late = false;
  client.on_stop([&] { late = true; });
  EXPECT_TRUE(late) << "who asks after the request hears of it at once";

  hub.hub->stop_all("at once", milliseconds(0));
  ASSERT_TRUE(eventually(loop, [&] { return client.stop_reason() == "at once"; }));
  EXPECT_EQ(client.stop_deadline(), milliseconds(0));
}

TEST(WorkerHub, announces_a_new_world_and_nothing_of_an_older_epoch_undoes_it) {
  EventLoop loop;
  Hub hub(loop);
  AgentClient client(options_for(hub));
  ASSERT_TRUE(eventually(loop, [&] { return hub.hub->connected(3); }));
  const NewWorld world{.epoch = 5, .rank = 3, .world_size = 4, .master_addr = "10.0.0.1"};
  EXPECT_TRUE(hub.hub->announce(3, world));
  EXPECT_TRUE(hub.hub->announce(3, {.epoch = 4}));
  hub.hub->stop(3, "after both", milliseconds(0));
  ASSERT_TRUE(eventually(loop, [&] { return client.stop_requested(); }));
  EXPECT_EQ(client.new_world(), world);
}

TEST(WorkerHub, hears_of_lost_peers_and_of_a_worker_that_leaves) {
  EventLoop loop;
  Hub hub(loop);
  {
    AgentClient client(options_for(hub));
    client.report_lost_peers({1}, "all_reduce");  // before it is connected
    ASSERT_TRUE(eventually(loop, [&] { return hub.events.size() == 2; }));
    client.report(77, "done");
    client.leave();
  }
  ASSERT_TRUE(eventually(loop, [&] { return hub.events.size() == 4; }));
  EXPECT_EQ(hub.events,
            (std::vector<std::string>{"hello 3 test", "lost 3 1 all_reduce", "leaving 3",
                                      "gone 3: it closed the connection"}));
  EXPECT_TRUE(hub.hub->state(3)->leaving);
  EXPECT_FALSE(hub.hub->state(3)->connected);
  EXPECT_EQ(hub.hub->state(3)->heartbeat.step, 77);
}

TEST(WorkerHub, a_ping_brings_a_heartbeat_before_its_time) {
  EventLoop loop;
  Hub hub(loop, {.heartbeat_interval = std::chrono::hours(1)});
  AgentClient client(options_for(hub));
  ASSERT_TRUE(eventually(loop, [&] { return hub.heartbeats == 1; }));
  client.report(9, "here");
  EXPECT_TRUE(hub.hub->ping(3));
  ASSERT_TRUE(eventually(loop, [&] { return hub.heartbeats == 2; }));
  EXPECT_EQ(hub.hub->state(3)->heartbeat.step, 9);
}

TEST(WorkerHub, takes_a_descendant_of_a_worker_for_the_worker) {
  EventLoop loop;
  Hub hub(loop);
  hub.worker = ::getppid();
  AgentClient client(options_for(hub));
  EXPECT_TRUE(eventually(loop, [&] { return hub.hub->connected(3); }));
}

TEST(WorkerHub, waits_for_the_agent_to_note_a_worker_that_was_quick) {
  EventLoop loop;
  Hub hub(loop);
  hub.worker = 0;
  AgentClient client(options_for(hub));
  ASSERT_TRUE(eventually(loop, [&] { return hub.asked > 0; }));
  hub.worker = ::getpid();
  EXPECT_TRUE(eventually(loop, [&] { return hub.hub->connected(3); }));
}

TEST(WorkerHub, refuses_a_process_that_it_did_not_start) {
  EventLoop loop;
  Hub hub(loop, {.handshake_timeout = milliseconds(500)});
  hub.worker = 0;
  AgentClient client(options_for(hub));
  ASSERT_TRUE(eventually(loop, [&] { return !client.problem().empty(); }));
  EXPECT_TRUE(contains(client.problem(), "is no worker of this agent")) << client.problem();
  EXPECT_EQ("the agent refused this worker: " + hub.refused, client.problem());
  EXPECT_FALSE(client.connected());
}

TEST(WorkerHub, refuses_another_slot_and_another_epoch) {
  EventLoop loop;
  Hub hub(loop);
  AgentClient::Options options = options_for(hub);
  options.hello.epoch = 1;
  AgentClient client(options);
  ASSERT_TRUE(eventually(loop, [&] { return !client.problem().empty(); }));
  EXPECT_TRUE(
      contains(client.problem(), "says slot 3 of epoch 1; it was started for slot 3 of epoch 2"))
      << client.problem();
}

TEST(WorkerHub, refuses_another_protocol_version) {
  EventLoop loop;
  Hub hub(loop);
  AgentClient::Options options = options_for(hub);
  options.hello.oldest_protocol = 8;
  options.hello.newest_protocol = 9;
  AgentClient client(options);
  ASSERT_TRUE(eventually(loop, [&] { return !client.problem().empty(); }));
  EXPECT_TRUE(contains(client.problem(), "versions 8 to 9")) << client.problem();
}

TEST(WorkerHub, a_second_connection_is_refused_while_the_first_is_there_and_welcome_afterwards) {
  EventLoop loop;
  Hub hub(loop);
  auto first = std::make_unique<AgentClient>(options_for(hub));
  ASSERT_TRUE(eventually(loop, [&] { return hub.hub->connected(3); }));
  AgentClient second(options_for(hub));
  ASSERT_TRUE(eventually(loop, [&] { return !second.problem().empty(); }));
  EXPECT_TRUE(contains(second.problem(), "is connected already")) << second.problem();
  EXPECT_TRUE(first->connected());
  first.reset();  // the hub has not seen it yet when the next one comes
  AgentClient third(options_for(hub));
  EXPECT_TRUE(eventually(loop, [&] { return third.connected(); })) << third.problem();
}

TEST(WorkerHub, the_worker_of_a_later_epoch_takes_the_place_of_one_that_lingers) {
  EventLoop loop;
  Hub hub(loop);
  AgentClient old(options_for(hub));
  ASSERT_TRUE(eventually(loop, [&] { return hub.hub->connected(3); }));
  hub.place.epoch = 3;
  AgentClient::Options options = options_for(hub);
  options.hello.epoch = 3;
  AgentClient fresh(options);
  EXPECT_TRUE(eventually(loop, [&] { return fresh.connected(); })) << fresh.problem();
  EXPECT_TRUE(eventually(loop, [&] { return !old.connected(); }));
  EXPECT_EQ(hub.hub->state(3)->hello.epoch, 3u);
}

TEST(WorkerHub, garbage_silence_and_huge_frames_harm_nobody_else) {
  EventLoop loop;
  Hub hub(loop, {.handshake_timeout = milliseconds(500)});
  AgentClient client(options_for(hub));
  ASSERT_TRUE(eventually(loop, [&] { return hub.hub->connected(3); }));
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff"), encode_frame("not json"), encode_frame("{}"),
        encode_frame(encode_from_worker(WorkerLeaving{})), std::string()}) {
    hub.refused.clear();
    const UniqueFd stranger = connect_to_path(hub.hub->socket_path());
    if (!bytes.empty()) {
      ASSERT_GT(::send(stranger.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    }
    ASSERT_TRUE(eventually(loop, [&] { return !hub.refused.empty(); }));
  }
  EXPECT_TRUE(contains(hub.refused, "said nothing"));
  EXPECT_TRUE(client.connected());
}

TEST(WorkerHub, drops_a_worker_that_does_not_read) {
  EventLoop loop;
  Hub hub(loop, {.max_queued_bytes = 1000});
  const UniqueFd deaf = connect_to_path(hub.hub->socket_path());
  const std::string hello = encode_frame(encode_from_worker(options_for(hub).hello));
  ASSERT_EQ(::send(deaf.get(), hello.data(), hello.size(), 0), static_cast<ssize_t>(hello.size()));
  ASSERT_TRUE(eventually(loop, [&] { return hub.hub->connected(3); }));
  const std::string reason(100000, 'x');
  for (int i = 0; i < 100; ++i) hub.hub->stop(3, reason, milliseconds(0));
  ASSERT_TRUE(eventually(loop, [&] { return !hub.hub->connected(3); }));
  EXPECT_EQ(hub.events.back(), "gone 3: it does not read what it is sent");
}

TEST(WorkerHub, its_socket_is_for_this_user_alone_and_is_removed) {
  EventLoop loop;
  TemporaryFolder folder;
  const std::string path = folder / "agent";
  {
    Hub hub(loop, {.socket_path = path});
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(WorkerHub, its_path_may_be_longer_than_a_socket_address) {
  EventLoop loop;
  TemporaryFolder folder;
  std::filesystem::create_directories(folder / std::string(120, 'd'));
  Hub hub(loop, {.socket_path = folder / (std::string(120, 'd') + "/agent")});
  AgentClient client(options_for(hub));
  EXPECT_TRUE(eventually(loop, [&] { return hub.hub->connected(3); })) << client.problem();
}

TEST(WorkerHub, hears_that_a_worker_can_be_carried_over_and_whose_state_differs) {
  EventLoop loop;
  Hub hub(loop, {.replaces = true});
  AgentClient client(options_for(hub));
  EXPECT_FALSE(client.replaces_workers());
  client.report_recovers(2, 812);
  client.reject(3, {1}, "its hash differs");
  ASSERT_TRUE(eventually(loop, [&] { return hub.events.size() == 3; }));
  EXPECT_EQ(hub.events.at(1), "recovers 3 in 2 at 812");
  EXPECT_EQ(hub.events.at(2), "3 rejects 1: its hash differs");
  EXPECT_EQ(hub.hub->state(3)->recovers, (WorkerRecovers{.epoch = 2, .step = 812}));
  EXPECT_TRUE(client.replaces_workers());
  client.report_recovers_no_more(2, 900);
  EXPECT_TRUE(eventually(loop, [&] { return !hub.hub->state(3)->recovers; }));
}

TEST(WorkerHub, what_was_said_can_be_heard_before_the_loop_comes_to_it) {
  EventLoop loop;
  Hub hub(loop);
  AgentClient client(options_for(hub));
  ASSERT_TRUE(eventually(loop, [&] { return hub.hub->connected(3); }));
  client.report_recovers(2, 7);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!hub.hub->state(3)->recovers && std::chrono::steady_clock::now() < deadline) {
    hub.hub->catch_up();
  }
  EXPECT_EQ(hub.hub->state(3)->recovers, (WorkerRecovers{.epoch = 2, .step = 7}));
}

TEST(WorkerHub, revokes_a_world_and_announces_the_next) {
  EventLoop loop;
  Hub hub(loop);
  AgentClient client(options_for(hub));
  std::atomic<int> called = 0;
  client.on_revoke([&](const RevokeWorld& revoke) { called = static_cast<int>(revoke.epoch); });
  ASSERT_TRUE(eventually(loop, [&] { return hub.hub->connected(3); }));
  EXPECT_TRUE(hub.hub->revoke(3, {.epoch = 5, .reason = "rank 1 died", .lost_ranks = {1}}));
  EXPECT_FALSE(hub.hub->revoke(2, {.epoch = 5}));
  ASSERT_TRUE(eventually(loop, [&] { return called == 5; }));
  EXPECT_EQ(client.revoked()->lost_ranks, (std::vector<int>{1}));

  // Who asks later hears it too, until a membership has answered it.
  int late = 0;
  client.on_revoke([&](const RevokeWorld&) { ++late; });
  EXPECT_EQ(late, 1);
  EXPECT_EQ(client.await_world(5, milliseconds(1)), std::nullopt);
  hub.hub->announce(3, {.epoch = 5, .world_size = 2, .replaced_slots = {1}});
  ASSERT_TRUE(eventually(loop, [&] { return client.new_world().has_value(); }));
  EXPECT_EQ(client.await_world(5, milliseconds(0))->replaced_slots, (std::vector<int>{1}));
  EXPECT_EQ(client.await_world(6, milliseconds(1)), std::nullopt);
  client.on_revoke([&](const RevokeWorld&) { ++late; });
  EXPECT_EQ(late, 1);
}

TEST(AgentClient, does_not_wait_for_a_world_that_was_revoked_again_or_after_a_stop) {
  EventLoop loop;
  Hub hub(loop);
  AgentClient client(options_for(hub));
  ASSERT_TRUE(eventually(loop, [&] { return hub.hub->connected(3); }));
  hub.hub->announce(3, {.epoch = 5});
  hub.hub->revoke(3, {.epoch = 6});
  hub.hub->revoke(3, {.epoch = 4});  // late, and of a membership that is over
  ASSERT_TRUE(eventually(loop, [&] { return client.revoked().has_value(); }));
  EXPECT_EQ(client.revoked()->epoch, 6u);
  EXPECT_EQ(client.await_world(5, milliseconds(1)), std::nullopt);
  hub.hub->stop(3, "it cannot go on", milliseconds(1000));
  ASSERT_TRUE(eventually(loop, [&] { return client.stop_requested(); }));
  EXPECT_EQ(client.await_world(5, std::chrono::hours(1)), std::nullopt);
}

TEST(AgentClient, waits_for_the_welcome_of_a_busy_agent_and_not_for_one_that_is_gone) {
  EventLoop loop;
  std::optional<Hub> hub(std::in_place, loop, WorkerHubOptions{.replaces = true});
  AgentClient client(options_for(*hub));
  EXPECT_FALSE(client.connected()) << "the loop has not run";
  auto welcomed = std::async(std::launch::async, [&] { return client.await_welcome(); });
  ASSERT_TRUE(eventually(
      loop, [&] { return welcomed.wait_for(milliseconds(0)) == std::future_status::ready; }));
  EXPECT_TRUE(welcomed.get());
  EXPECT_TRUE(client.replaces_workers());
  hub.reset();
  ASSERT_TRUE(eventually(loop, [&] { return !client.problem().empty(); }));
  EXPECT_FALSE(client.await_welcome());
}

TEST(AgentClient, says_nothing_of_version_2_to_an_agent_of_version_1) {
  EventLoop loop;
  Hub hub(loop, {.replaces = true});
  AgentClient::Options options = options_for(hub);
  options.hello.newest_protocol = 1;
  AgentClient client(options);
  client.report_recovers(2, 1);
  client.leave();
  ASSERT_TRUE(eventually(loop, [&] { return hub.events.size() == 2; }));
  EXPECT_EQ(hub.events.at(1), "leaving 3");
  EXPECT_FALSE(client.replaces_workers());
  EXPECT_FALSE(hub.hub->revoke(3, {.epoch = 5}));
}

TEST(AgentClient, outlives_the_agent_without_disturbing_the_program) {
  EventLoop loop;
  std::optional<Hub> hub(std::in_place, loop);
  AgentClient client(options_for(*hub));
  ASSERT_TRUE(eventually(loop, [&] { return client.connected(); }));
  hub.reset();
  ASSERT_TRUE(eventually(loop, [&] { return !client.connected(); }));
  client.report(1, "alone");
  client.report_lost_peers({0}, "barrier");
  client.leave();
  EXPECT_FALSE(client.stop_requested());
  EXPECT_NE(client.problem(), "");
}

TEST(AgentClient, without_an_agent_at_the_path_says_so_and_goes_on) {
  EventLoop loop;
  AgentClient client({.socket_path = "/nonexistent/agent", .hello = {}});
  ASSERT_TRUE(eventually(loop, [&] { return !client.problem().empty(); }));
  EXPECT_TRUE(contains(client.problem(), "/nonexistent/agent"));
}

TEST(AgentClient, is_made_from_the_environment_of_a_worker) {
  EventLoop loop;
  Hub hub(loop);
  Environment::Variables variables{{"LOCKSTEP_AGENT", hub.hub->socket_path()},
                                   {"RANK", "3"},
                                   {"LOCKSTEP_SLOT", "3"},
                                   {"LOCKSTEP_EPOCH", "2"}};
  const auto client = AgentClient::from_environment(Environment(variables));
  EXPECT_TRUE(eventually(loop, [&] { return client->connected(); })) << client->problem();
  EXPECT_EQ(AgentClient::from_environment(Environment(Environment::Variables{})), nullptr);
  variables["LOCKSTEP_EPOCH"] = "-1";
  EXPECT_THROW(AgentClient::from_environment(Environment(variables)), InvalidArgument);
  variables.erase("LOCKSTEP_EPOCH");
  EXPECT_THROW(AgentClient::from_environment(Environment(variables)), InvalidArgument);
}
