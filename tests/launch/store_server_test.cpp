#include "launch/store_server.h"

#include <sys/resource.h>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "launch/addresses.h"
#include "launch/listen.h"
#include "launch/store_listener.h"
#include "lockstep/error.h"
#include "tests/support/store_client.h"

using lockstep::concat;
using lockstep::StoreClient;
using lockstep::StoreCommand;
using lockstep::StoreServer;
using lockstep::StoreStatus;
namespace wire = lockstep::wire;
using namespace std::chrono_literals;

namespace {

const std::string kStop(1, '\0'), kReady(1, '\0'), kNotReady(1, '\1');

// What the store's thread has said.
class Lines {
 public:
  void add(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
    added_.notify_all();
  }

  bool wait_for(const std::string& part) {
    std::unique_lock lock(mutex_);
    return added_.wait_for(lock, 10s, [&] {
      return std::ranges::any_of(lines_, [&](auto& line) { return line.find(part) != line.npos; });
    });
  }

  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return lines_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable added_;
  std::vector<std::string> lines_;
};

struct StoreServerTest : ::testing::Test {
  StoreServer& start(std::size_t max_bytes = std::size_t{1} << 30,
                     const std::string& address = "127.0.0.1") {
    server.emplace(lockstep::StoreServerOptions{
        .listener = lockstep::listen_on(address, 0),
        .log = [this](std::string line) { lines.add(std::move(line)); },
        .max_bytes = max_bytes});
    return *server;
  }

  // Waits until the status is as wanted; the caller asserts on what it returns.
  StoreStatus status_when(const std::function<bool(const StoreStatus&)>& wanted) {
    const auto deadline = std::chrono::steady_clock::now() + 10s;
    while (true) {
      const StoreStatus status = server->status();
      if (wanted(status) || std::chrono::steady_clock::now() > deadline) return status;
      std::this_thread::sleep_for(1ms);
    }
  }

  Lines lines;
  std::optional<StoreServer> server;
};

std::string get(std::string_view key) {
  return wire::request(StoreCommand::get, {key});
}
std::string set(std::string_view key, std::string_view value) {
  return wire::request(StoreCommand::set, {key, value});
}
std::string wait(std::string_view key) {
  return wire::list(StoreCommand::wait, {key});
}

// An address of this machine that is not loopback; empty if it has none.
std::string outside_address() {
  for (const auto& local : lockstep::LocalMachine::current().addresses) {
    if (local.up && local.address.family() == AF_INET && !local.address.is_loopback()) {
      return local.address.to_string();
    }
  }
  return "";
}

}  // namespace

TEST_F(StoreServerTest, clients_share_keys_and_wake_each_other) {
  const int port = start().port();
  StoreClient one(port), other(port);
  EXPECT_TRUE(one.send(wait("/k")));
  status_when([](auto& status) { return status.clients.size() == 2; });
  EXPECT_TRUE(other.send(set("/k", "value")));
  EXPECT_EQ(one.receive(1), kStop);
  EXPECT_EQ(one.ask(get("/k"), 13), wire::text("value"));
}

TEST_F(StoreServerTest, status_tells_who_waits_for_what) {
  const int port = start().port();
  StoreClient waiting(port), idle(port);
  ASSERT_TRUE(waiting.answers());
  ASSERT_TRUE(idle.send(set("/default_pg/0//cpu//0/1", "address")));
  ASSERT_TRUE(waiting.send(wait("/default_pg/0//cpu//0/0")));
  const auto waits = [](auto& client) { return !client.awaited_keys.empty(); };
  const StoreStatus status = status_when([&](auto& now) {
    return std::ranges::any_of(now.clients, waits) && !now.arrival_keys.empty();
  });
  ASSERT_EQ(status.clients.size(), 2u);
  EXPECT_EQ(status.keys, 1u);
  const auto client = std::ranges::find_if(status.clients, waits);
  ASSERT_NE(client, status.clients.end());
  EXPECT_EQ(client->pid, 77u);
  EXPECT_EQ(client->address, "127.0.0.1");
  EXPECT_GT(client->port, 0);
  EXPECT_EQ(client->awaited_keys, std::vector<std::string>{"/default_pg/0//cpu//0/0"});
  EXPECT_EQ(ranks_not_arrived(status, 3), (std::vector<int>{0, 2}));
}

TEST_F(StoreServerTest, garbage_closes_the_connection_it_came_on_and_no_other) {
  const int port = start().port();
  StoreClient good(port);
  for (const std::string& garbage :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\0\0\0\0\0", 5),
        wire::validate() + '\x7f', wire::validate() + wire::validate()}) {
    auto bad = StoreClient::silent(port);
    bad.send(garbage);
    EXPECT_TRUE(bad.closed_by_server());
  }
  std::mt19937 random(1);
  for (int i = 0; i < 100; ++i) {
    auto bad = StoreClient::silent(port);
    std::string bytes(1 + random() % 300, '\0');
    std::ranges::generate(bytes, [&] { return static_cast<char>(random()); });
    bytes[0] = '\x55';
    bad.send(bytes);
    ASSERT_TRUE(bad.closed_by_server());
  }
  EXPECT_TRUE(good.answers());
  const auto refusals = server->status().refusals;
  EXPECT_TRUE(std::ranges::any_of(refusals, [](auto& refusal) {
    return refusal.times == 100 && refusal.reason.find("127.0.0.1: its first byte is 85") == 0;
  }));
  EXPECT_LT(lines.size(), 20u) << "a client that comes again and again must not fill the log";
}

TEST_F(StoreServerTest, half_a_request_holds_up_nobody_and_has_no_effect) {
  const int port = start().port();
  const std::string whole = wire::list(StoreCommand::multi_set, {"/a", "1", "/b", "2"});
  StoreClient good(port);
  {
    StoreClient half(port);
    half.send(whole.substr(0, whole.size() - 1));
    EXPECT_TRUE(good.answers());
    EXPECT_EQ(good.ask(wire::list(StoreCommand::check, {"/a"}), 1), kNotReady);
  }
  status_when([](auto& status) { return status.clients.size() == 1; });
  EXPECT_EQ(good.ask(wire::list(StoreCommand::check, {"/a"}), 1), kNotReady);
}

TEST_F(StoreServerTest, huge_lengths_are_refused_at_once) {
  const int port = start().port();
  for (const std::string& start :
       {wire::command(StoreCommand::set), wire::command(StoreCommand::wait),
        wire::command(StoreCommand::set) + wire::text("/k")}) {
    StoreClient bad(port);
    bad.send(start + wire::integer<std::uint64_t>(std::uint64_t{1} << 40));
    EXPECT_TRUE(bad.closed_by_server());
  }
  EXPECT_LT(server->status().bytes, std::size_t{1} << 20);
}

TEST_F(StoreServerTest, replies_to_earlier_requests_arrive_before_the_connection_is_closed) {
  StoreClient client(start().port());
  client.send(wire::ping(5) + '\x63');
  EXPECT_EQ(client.receive(4), wire::integer<std::uint32_t>(5));
  EXPECT_TRUE(client.closed_by_server());
}

TEST_F(StoreServerTest, a_client_that_does_not_read_takes_little_memory_and_gets_everything_later) {
  const int port = start().port();
  constexpr std::size_t kValue = 4 << 20, kTimes = 50;
  StoreClient slow(port), good(port);
  const std::string value(kValue, 'v');
  ASSERT_TRUE(good.send(set("/large", value)));
  ASSERT_TRUE(good.answers());
  std::string requests;
  for (std::size_t i = 0; i < kTimes; ++i) requests += get("/large");
  ASSERT_TRUE(slow.send(requests));  // 200 MB of replies
  status_when([](auto& status) { return status.bytes > 2 * kValue; });
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(good.answers());
  EXPECT_LT(server->status().bytes, 6 * kValue);
  for (std::size_t i = 0; i < kTimes; ++i) {
    ASSERT_EQ(slow.receive(8 + kValue).size(), 8 + kValue) << "reply " << i;
  }
  EXPECT_TRUE(slow.answers());
}

TEST_F(StoreServerTest, a_client_that_goes_with_unread_replies_is_forgotten) {
  const int port = start().port();
  {
    StoreClient slow(port);
    slow.send(set("/large", std::string(8 << 20, 'v')) + get("/large") + get("/large"));
    status_when([](auto& status) { return status.bytes > (9u << 20); });
  }
  EXPECT_TRUE(status_when([](auto& status) { return status.clients.empty(); }).clients.empty());
}

TEST_F(StoreServerTest, five_hundred_clients_meet) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const rlimit before = files;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 1200) GTEST_SKIP() << "too few open files are allowed here";
  constexpr int kClients = 500;
  const int port = start().port();
  std::vector<StoreClient> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back(port);
    ASSERT_TRUE(clients.back().send(wire::request(StoreCommand::barrier, "/all", kClients)));
  }
  for (StoreClient& client : clients) ASSERT_EQ(client.receive(1), kStop);
  EXPECT_EQ(server->status().clients.size(), std::size_t{kClients});
  clients.clear();
  EXPECT_TRUE(status_when([](auto& status) { return status.clients.empty(); }).clients.empty());
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(StoreServerTest, memory_has_a_limit_and_its_breach_concerns_one_client) {
  const int port = start(1 << 20).port();
  StoreClient good(port), greedy(port);
  ASSERT_TRUE(good.answers());
  for (int i = 0; greedy.send(set(concat("/", i), std::string(100'000, 'v'))) && i < 100; ++i) {
  }
  EXPECT_TRUE(greedy.closed_by_server());
  EXPECT_TRUE(lines.wait_for("1048576 bytes"));
  EXPECT_TRUE(good.answers());
  EXPECT_LE(server->status().bytes, std::size_t{1} << 20);
}

TEST_F(StoreServerTest, half_requests_count_against_the_limit) {
  const int port = start(1 << 20).port();
  StoreClient good(port), greedy(port);
  ASSERT_TRUE(good.answers());
  greedy.send(set("/k", std::string(4 << 20, 'v')).substr(0, 3 << 20));
  EXPECT_TRUE(greedy.closed_by_server());
  EXPECT_TRUE(lines.wait_for("the store's memory is used up"));
  EXPECT_TRUE(good.answers());
}

TEST_F(StoreServerTest, a_new_keyspace_knows_nothing_of_the_old_one) {
  const int port = start().port();
  StoreClient waiting(port), other(port);
  ASSERT_TRUE(other.send(set("/k", "v")));
  ASSERT_TRUE(other.answers());
  ASSERT_TRUE(waiting.send(wait("/never")));
  server->new_keyspace(2);
  EXPECT_TRUE(waiting.closed_by_server());
  EXPECT_TRUE(other.closed_by_server());
  const StoreStatus status = server->status();
  EXPECT_EQ(status.epoch, 2u);
  EXPECT_EQ(status.keys, 0u);
  EXPECT_TRUE(status.clients.empty());
  StoreClient fresh(port);
  EXPECT_EQ(fresh.ask(wire::list(StoreCommand::check, {"/k"}), 1), kNotReady);
}

TEST_F(StoreServerTest, machines_outside_the_job_are_turned_away) {
  const std::string outside = outside_address();
  if (outside.empty()) GTEST_SKIP() << "this machine has only loopback";
  const int port = start().port();
  auto stranger = StoreClient::silent(port, outside);
  EXPECT_TRUE(stranger.closed_by_server());
  EXPECT_TRUE(lines.wait_for(outside + ": not part of the job"));

  server->allow({"192.0.2.7", "::ffff:" + outside});
  StoreClient member(port, outside);
  EXPECT_TRUE(member.answers());
  StoreClient local(port);
  EXPECT_TRUE(local.answers());

  server->allow({});
  EXPECT_TRUE(member.closed_by_server()) << "it is no longer part of the job";
  EXPECT_TRUE(local.answers());
}

TEST_F(StoreServerTest, a_socket_of_both_families_tells_members_by_their_ipv4_address) {
  const std::string outside = outside_address();
  if (outside.empty()) GTEST_SKIP() << "this machine has only loopback";
  try {
    start(1 << 30, "::");
  } catch (const lockstep::SystemError&) {
    GTEST_SKIP() << "no IPv6 here";
  }
  EXPECT_TRUE(StoreClient::silent(server->port(), outside).closed_by_server());
  server->allow({outside});
  EXPECT_TRUE(StoreClient(server->port(), outside).answers());
  EXPECT_TRUE(StoreClient(server->port()).answers());
}

TEST_F(StoreServerTest, only_numeric_addresses_can_be_allowed) {
  start();
  EXPECT_THROW(server->allow({"node1"}), lockstep::InvalidArgument);
}

TEST_F(StoreServerTest, this_machine_may_connect_by_any_of_its_addresses) {
  lockstep::EventLoop loop;
  lockstep::StoreListener listener(loop, lockstep::listen_on("127.0.0.1", 0), {});
  const auto address = [](const char* text) { return *lockstep::IpAddress::parse(text); };
  EXPECT_TRUE(listener.is_allowed({address("10.0.0.1"), address("10.0.0.1"), 1}));
  EXPECT_TRUE(listener.is_allowed({address("::1"), address("::1"), 1}));
  EXPECT_FALSE(listener.is_allowed({address("10.0.0.2"), address("10.0.0.1"), 1}));
  listener.allow({address("10.0.0.2")});
  EXPECT_TRUE(listener.is_allowed({address("::ffff:10.0.0.2"), address("10.0.0.1"), 1}));
}

TEST_F(StoreServerTest, without_free_descriptors_new_connections_wait_and_old_ones_are_served) {
  const int port = start().port();
  StoreClient early(port);
  ASSERT_TRUE(early.answers());
  auto late = StoreClient::unconnected();
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{.rlim_cur = 3, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  late.connect(port);
  late.send(wire::validate() + wire::ping(9));
  const bool said = lines.wait_for("connections have to wait");
  const bool served = early.answers();
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(said);
  EXPECT_TRUE(served);
  EXPECT_EQ(late.receive(4), wire::integer<std::uint32_t>(9));
}

TEST_F(StoreServerTest, the_end_of_the_server_frees_its_clients_and_its_port) {
  const int port = start().port();
  StoreClient client(port);
  ASSERT_TRUE(client.send(wait("/k")));
  server.reset();
  EXPECT_TRUE(client.closed_by_server());
  EXPECT_EQ(lockstep::port_of(lockstep::listen_on("127.0.0.1", port)), port);
}
