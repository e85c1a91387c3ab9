#include "launch/store_forwarder.h"

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "launch/listen.h"
#include "launch/store_server.h"
#include "tests/support/store_client.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

/// A store on one node and a forwarder on another, with a link between them.
struct StoreForwarderTest : ::testing::Test {
  StoreForwarderTest() { store.new_keyspace(1); }

  ~StoreForwarderTest() override { stop(); }

  // The launcher's loop, while clients of the test block.
  void start() {
    thread = std::thread([this] {
      while (!stopping) {
        loop.run_once(milliseconds(2));
        if (connect_now.exchange(false)) forwarder.on_connected();
        for (; !to_store.empty(); to_store.pop_front()) at_store.on_message(to_store.front());
        for (; !to_worker.empty(); to_worker.pop_front()) forwarder.on_message(to_worker.front());
      }
    });
  }
  void stop() {
    stopping = true;
    if (thread.joinable()) thread.join();
  }

  EventLoop loop;
  std::deque<std::string> to_store, to_worker;
  std::atomic<bool> stopping = false, connect_now = false;
  std::uint64_t epoch_of_store = 1;
  StoreServer store{StoreServerOptions{.listener = listen_on("127.0.0.1", 0), .log = {}}};
  StreamBundle at_store{loop,
                        {.send = [this](std::string text) { to_worker.push_back(std::move(text)); },
                         .queued_bytes = [] { return std::size_t{0}; },
                         .connect =
                             [this](std::uint64_t epoch) {
                               return epoch == epoch_of_store ? store.connect("10.1.2.3")
                                                              : UniqueFd();
                             }}};
  StoreForwarder forwarder{
      loop,
      {.send = [this](std::string text) { to_store.push_back(std::move(text)); },
       .queued_bytes = [] { return std::size_t{0}; },
       .log = [](const std::string&) {}}};
  std::thread thread;
};

TEST_F(StoreForwarderTest, workers_of_both_nodes_share_one_store) {
  forwarder.on_connected();
  const int port = forwarder.open(1);
  start();
  StoreClient elsewhere(port), beside(store.port());
  ASSERT_TRUE(elsewhere.send(wire::request(StoreCommand::set, {"/key", "value"})));
  ASSERT_TRUE(elsewhere.send(wire::request(StoreCommand::get, {"/key"})));
  EXPECT_EQ(elsewhere.receive(wire::text("value").size()), wire::text("value"));
  ASSERT_TRUE(beside.send(wire::request(StoreCommand::get, {"/key"})));
  EXPECT_EQ(beside.receive(wire::text("value").size()), wire::text("value"));
  bool seen = false;
  for (const StoreClientStatus& client : store.status().clients) {
    seen = seen || client.address == "10.1.2.3";
  }
  EXPECT_TRUE(seen);
}

TEST_F(StoreForwarderTest, who_comes_while_there_is_no_link_waits_for_one) {
  const int port = forwarder.open(1);
  start();
  StoreClient client(port);
  EXPECT_EQ(store.status().clients.size(), 0u);
  connect_now = true;
  EXPECT_TRUE(client.answers());
}

TEST_F(StoreForwarderTest, a_worker_of_another_epoch_is_turned_away) {
  epoch_of_store = 2;
  forwarder.on_connected();
  const int port = forwarder.open(1);
  start();
  StoreClient client = StoreClient::silent(port);
  EXPECT_TRUE(client.closed_by_server());
}

TEST_F(StoreForwarderTest, a_new_epoch_closes_the_connections_of_the_old_one_and_its_port) {
  forwarder.on_connected();
  const int old_port = forwarder.open(1);
  start();
  StoreClient client(old_port);
  EXPECT_TRUE(client.answers());
  stop();
  EXPECT_NE(forwarder.open(2), old_port);
  EXPECT_TRUE(client.closed_by_server());
  EXPECT_THROW(StoreClient{old_port}, SystemError);
}

TEST_F(StoreForwarderTest, a_broken_link_ends_the_connections_that_it_carried) {
  forwarder.on_connected();
  const int port = forwarder.open(1);
  start();
  StoreClient client(port);
  EXPECT_TRUE(client.answers());
  stop();
  forwarder.on_disconnected();
  EXPECT_TRUE(client.closed_by_server());
}

}  // namespace
}  // namespace lockstep
