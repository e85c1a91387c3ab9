#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

#include "control/frame.h"
#include "control/spare.h"
#include "core/unix_socket.h"
#include "worker_hub_support.h"

using namespace lockstep;
using std::chrono::milliseconds;

TEST(SpareConnections, a_spare_waits_and_becomes_the_worker_of_a_place) {
  EventLoop loop;
  Hub hub(loop, {.heartbeat_interval = std::chrono::minutes(1)});
  hub.place = {.spare = 7};
  Environment::Variables variables{{"LOCKSTEP_AGENT", hub.hub->socket_path()},
                                   {"LOCKSTEP_SPARE", "1"}};
  const auto client = AgentClient::from_environment(Environment(variables));
  ASSERT_TRUE(eventually(loop, [&] { return !hub.events.empty(); })) << client->problem();
  EXPECT_EQ(hub.events.at(0), "spare 7");
  EXPECT_FALSE(hub.hub->connected(0));
  EXPECT_EQ(client->await_place(milliseconds(1)), std::nullopt);

  const TakePlace take{.variables = {{"RANK", "3"}}};
  EXPECT_FALSE(hub.hub->give_place(8, {.slot = 3, .epoch = 2}, take));
  EXPECT_TRUE(hub.hub->give_place(7, {.slot = 3, .epoch = 2}, take));
  EXPECT_FALSE(hub.hub->give_place(7, {.slot = 4, .epoch = 2}, take));
  EXPECT_TRUE(hub.hub->connected(3));
  EXPECT_EQ(hub.hub->state(3)->hello.epoch, 2u);
  EXPECT_EQ(client->await_place(std::chrono::seconds(30)), take);
  client->report_recovers(2, 5);
  ASSERT_TRUE(eventually(loop, [&] { return hub.hub->state(3)->recovers.has_value(); }));
  EXPECT_TRUE(hub.hub->announce(3, {.epoch = 4}));
  EXPECT_TRUE(client->await_world(4, std::chrono::seconds(30)));
}

TEST(SpareConnections, a_spare_that_was_given_a_place_may_connect_again_as_its_worker) {
  EventLoop loop;
  Hub hub(loop, {.heartbeat_interval = std::chrono::minutes(1)});
  hub.place = {.spare = 7};
  AgentClient::Options options = options_for(hub);
  options.hello.spare = true;
  std::optional<AgentClient> spare(std::in_place, options);
  ASSERT_TRUE(eventually(loop, [&] { return !hub.events.empty(); }));
  ASSERT_TRUE(hub.hub->give_place(7, {.slot = 3, .epoch = 2}, {}));
  EXPECT_TRUE(spare->await_place(std::chrono::seconds(30)));
  spare.reset();
  hub.place = {.slot = 3, .epoch = 2};
  const AgentClient worker(options_for(hub));
  EXPECT_TRUE(eventually(loop, [&] { return worker.connected(); })) << worker.problem();
  EXPECT_TRUE(hub.hub->connected(3));
}

TEST(SpareConnections, a_spare_takes_the_place_of_a_connection_that_is_still_there) {
  EventLoop loop;
  Hub hub(loop, {.heartbeat_interval = std::chrono::minutes(1)});
  const AgentClient before(options_for(hub));
  ASSERT_TRUE(eventually(loop, [&] { return hub.hub->connected(3); }));
  hub.place = {.spare = 1};
  AgentClient::Options options = options_for(hub);
  options.hello.spare = true;
  const AgentClient spare(options);
  ASSERT_TRUE(eventually(loop, [&] { return hub.events.back() == "spare 1"; }));
  EXPECT_TRUE(hub.hub->give_place(1, {.slot = 3, .epoch = 5}, {}));
  ASSERT_TRUE(eventually(loop, [&] { return !before.problem().empty(); }));
  EXPECT_TRUE(eventually(loop, [&] { return spare.connected(); })) << spare.problem();
}

TEST(SpareConnections, a_spare_that_stands_still_or_has_gone_is_given_no_place) {
  EventLoop loop;
  Hub hub(loop);
  hub.place = {.spare = 7};
  const UniqueFd silent = connect_to_path(hub.hub->socket_path());
  const std::string hello = encode_frame(encode_from_worker(WorkerHello{.spare = true}));
  ASSERT_GT(::send(silent.get(), hello.data(), hello.size(), 0), 0);
  ASSERT_TRUE(eventually(loop, [&] { return !hub.events.empty(); }));
  const auto now = EventLoop::Clock::now();
  ASSERT_TRUE(eventually(loop, [&] { return EventLoop::Clock::now() - now > milliseconds(60); }));
  EXPECT_FALSE(hub.hub->give_place(7, {.slot = 3, .epoch = 2}, {}));

  Hub other(loop, {.heartbeat_interval = std::chrono::minutes(1)});
  other.place = {.spare = 7};
  {
    AgentClient::Options options = options_for(other);
    options.hello.spare = true;
    const AgentClient gone(options);
    ASSERT_TRUE(eventually(loop, [&] { return !other.events.empty() && gone.connected(); }));
  }
  EXPECT_FALSE(other.hub->give_place(7, {.slot = 3, .epoch = 2}, {}));
}

TEST(SpareConnections, who_is_no_spare_cannot_say_so_nor_a_spare_hide_it) {
  EventLoop loop;
  Hub hub(loop);
  AgentClient::Options options = options_for(hub);
  options.hello.spare = true;
  const AgentClient no_spare(options);
  ASSERT_TRUE(eventually(loop, [&] { return !hub.refused.empty(); }));
  EXPECT_TRUE(contains(hub.refused, "says that it is a spare; it was started as a worker"));
  hub.place = {.spare = 1};
  hub.refused.clear();
  const AgentClient spare(options_for(hub));
  ASSERT_TRUE(eventually(loop, [&] { return !hub.refused.empty(); }));
  EXPECT_TRUE(contains(hub.refused, "says that it is a worker; it was started as a spare"));
}

TEST(SpareConnections, a_spare_does_not_wait_for_a_place_after_a_stop) {
  EventLoop loop;
  Hub hub(loop);
  hub.place = {.spare = 7};
  AgentClient::Options options = options_for(hub);
  options.hello.spare = true;
  AgentClient client(options);
  ASSERT_TRUE(eventually(loop, [&] { return client.connected(); }));
  hub.hub->stop_all("the job has ended", milliseconds(1000));
  ASSERT_TRUE(eventually(loop, [&] { return client.stop_requested(); }));
  EXPECT_EQ(client.await_place(std::chrono::hours(1)), std::nullopt);
}

TEST(SpareConnections, the_environment_of_a_spare_becomes_that_of_its_place) {
  EventLoop loop;
  Hub hub(loop, {.heartbeat_interval = std::chrono::minutes(1)});
  hub.place = {.spare = 7};
  wait_as_spare();  // nothing says that this process is one
  ::setenv("LOCKSTEP_AGENT", hub.hub->socket_path().c_str(), 1);
  ::setenv("LOCKSTEP_SPARE", "1", 1);
  std::atomic<bool> has_place = false;
  std::thread spare([&] {
    wait_as_spare();
    has_place = true;
  });
  EXPECT_TRUE(eventually(loop, [&] { return !hub.events.empty(); }));
  EXPECT_FALSE(has_place);
  hub.hub->give_place(7, {.slot = 3, .epoch = 2}, {.variables = {{"LOCKSTEP_TEST_PLACE", "3"}}});
  EXPECT_TRUE(eventually(loop, [&] { return has_place.load(); }));
  spare.join();
  const Environment environment = Environment::of_process();
  EXPECT_FALSE(is_spare(environment));
  EXPECT_EQ(environment.get("LOCKSTEP_TEST_PLACE"), "3");

  hub.place = {.spare = 8};
  ::setenv("LOCKSTEP_SPARE", "1", 1);
  std::string reason;
  std::thread superfluous([&] {
    try {
      wait_as_spare();
    } catch (const Aborted& error) {
      reason = error.what();
    }
  });
  EXPECT_TRUE(eventually(loop, [&] { return hub.events.back() == "spare 8"; }));
  hub.hub->stop_all("the job has ended", milliseconds(1000));
  superfluous.join();
  EXPECT_TRUE(contains(reason, "no place is left for it: the job has ended")) << reason;
  for (const char* name : {"LOCKSTEP_AGENT", "LOCKSTEP_SPARE", "LOCKSTEP_TEST_PLACE"}) {
    ::unsetenv(name);
  }
}
