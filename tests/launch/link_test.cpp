#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "launch/link_client.h"
#include "launch/link_server.h"
#include "launch/link_socket.h"
#include "launch/listen.h"
#include "lockstep/error.h"
#include "tests/support/said.h"

using lockstep::EventLoop;
using lockstep::LinkClient;
using lockstep::LinkClientOptions;
using lockstep::LinkLimits;
using lockstep::LinkServer;
using lockstep::LinkServerOptions;
using lockstep::LinkSession;
using lockstep::UniqueFd;
using lockstep::testing::contains;
using std::chrono::milliseconds;

namespace {

constexpr const char* kSecret = "0123456789abcdef";

// Runs the loop until something holds; false if it never did.
bool within_ten_seconds(EventLoop& loop, const std::function<bool()>& holds) {
  const auto limit = EventLoop::Clock::now() + std::chrono::seconds(10);
  while (!holds()) {
    if (EventLoop::Clock::now() > limit) return false;
    loop.run_once(milliseconds(20));
  }
  return true;
}

struct Server {
  explicit Server(EventLoop& loop, LinkServerOptions options = {.secret = kSecret})
      : server(loop, lockstep::listen_on("127.0.0.1", 0), std::move(options),
               {.on_open =
                    [this](LinkServer::Id id, const std::string& peer, const std::string& local) {
                      opened.push_back(id);
                      addresses = peer + " " + local;
                    },
                .on_message = [this](LinkServer::Id id,
                                     std::string text) { messages[id].push_back(std::move(text)); },
                .on_close = [this](LinkServer::Id id,
                                   const std::string& reason) { closed[id] = reason; },
                .on_refused =
                    [this](const std::string& address, const std::string& reason) {
                      refused.push_back(address + ": " + reason);
                    },
                .on_left =
                    [this](const std::string& address, const std::string& reason) {
                      left.push_back(address + ": " + reason);
                    }}) {}

  std::vector<LinkServer::Id> opened;
  std::string addresses;
  std::map<LinkServer::Id, std::vector<std::string>> messages;
  std::map<LinkServer::Id, std::string> closed;
  std::vector<std::string> refused;
  std::vector<std::string> left;
  LinkServer server;
};

LinkClientOptions towards(const std::string& host, int port, const std::string& secret = kSecret) {
  LinkClientOptions options;
  options.server.host = host;
  options.server.port = port;
  options.secret = secret;
  return options;
}

struct Client {
  Client(EventLoop& loop, LinkClientOptions options)
      : client(loop, std::move(options),
               {.on_open =
                    [this](const std::string& peer, const std::string& local) {
                      opened = true;
                      addresses = peer + " " + local;
                    },
                .on_message = [this](std::string text) { messages.push_back(std::move(text)); },
                .on_close = [this](const std::string& reason) { closed = reason; }}) {}
  Client(EventLoop& loop, const Server& server, const std::string& secret = kSecret)
      : Client(loop, towards("127.0.0.1", server.server.port(), secret)) {}

  bool opened = false;
  std::string addresses;
  std::vector<std::string> messages;
  std::string closed;
  LinkClient client;
};

// A socket that is connected and knows nothing about links.
UniqueFd plain_connection(int port, const std::string& from = "127.0.0.1") {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, from.c_str(), &address.sin_addr);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

}  // namespace

TEST(Link, carries_messages_both_ways_between_many_clients_and_a_server) {
  EventLoop loop;
  Server server(loop);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 20; ++i) clients.push_back(std::make_unique<Client>(loop, server));
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return server.opened.size() == 20; }));
  EXPECT_EQ(server.addresses, "127.0.0.1 127.0.0.1");
  for (const auto id : server.opened) server.server.send(id, "to " + std::to_string(id));
  for (const auto& client : clients) {
    ASSERT_TRUE(within_ten_seconds(loop, [&] { return client->messages.size() == 1; }));
    EXPECT_EQ(client->addresses, "127.0.0.1 127.0.0.1");
    client->client.send("back: " + client->messages[0]);
  }
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return server.messages.size() == 20; }));
  for (const auto& [id, messages] : server.messages) {
    EXPECT_EQ(messages.at(0), "back: to " + std::to_string(id));
  }
  EXPECT_TRUE(server.closed.empty() && server.refused.empty());
}

TEST(Link, carries_the_longest_messages_in_order) {
  EventLoop loop;
  Server server(loop);
  Client client(loop, server);
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return client.opened; }));
  for (char letter = 'a'; letter <= 'e'; ++letter) {
    client.client.send(std::string(LinkSession::kMaxMessageBytes, letter));
  }
  EXPECT_GT(client.client.queued_bytes(), 0u);
  ASSERT_TRUE(
      within_ten_seconds(loop, [&] { return server.messages[server.opened[0]].size() == 5; }));
  EXPECT_EQ(server.messages[server.opened[0]][4], std::string(LinkSession::kMaxMessageBytes, 'e'));
  EXPECT_THROW(client.client.send(std::string(LinkSession::kMaxMessageBytes + 1, 'x')),
               lockstep::InvalidArgument);
}

TEST(Link, a_name_is_looked_up_and_all_its_addresses_are_tried) {
  EventLoop loop;
  Server server(loop);
  Client client(loop, towards("localhost", server.server.port()));
  EXPECT_TRUE(within_ten_seconds(loop, [&] { return client.opened; })) << client.closed;
}

TEST(Link, a_wrong_secret_is_refused_with_the_reason_logged_once_and_harms_nobody) {
  EventLoop loop;
  Server server(loop);
  Client good(loop, server);
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return good.opened; }));
  for (int attempt = 0; attempt < 3; ++attempt) {
    Client bad(loop, server, "not the secret at all");
    ASSERT_TRUE(within_ten_seconds(loop, [&] { return !bad.closed.empty(); }));
    EXPECT_TRUE(contains(bad.closed, "the peer refused: the secret differs")) << bad.closed;
    EXPECT_FALSE(bad.opened);
  }
  ASSERT_EQ(server.refused.size(), 1u);
  EXPECT_TRUE(contains(server.refused[0], "127.0.0.1: the secret differs"));
  good.client.send("still here");
  EXPECT_TRUE(within_ten_seconds(loop, [&] { return !server.messages.empty(); }));
  EXPECT_TRUE(server.closed.empty());
}

TEST(Link, a_refusal_arrives_although_the_client_had_sent_more_than_was_read) {
  EventLoop loop;
  Server server(loop);
  const UniqueFd stranger = plain_connection(server.server.port());
  const std::string request = "GET / HTTP/1.1\r\n" + std::string(100000, 'x');
  ASSERT_EQ(::send(stranger.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !server.refused.empty(); }));
  for (int round = 0; round < 10; ++round) loop.run_once(milliseconds(1));
  ::shutdown(stranger.get(), SHUT_WR);
  std::string answer;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = ::recv(stranger.get(), buffer, sizeof(buffer), 0)) > 0) answer.append(buffer, got);
  EXPECT_EQ(got, 0) << "the connection was reset";
  EXPECT_TRUE(contains(answer, "does not speak lockstep's protocol"));
}

TEST(Link, who_leaves_in_the_handshake_was_not_turned_away) {
  EventLoop loop;
  Server server(loop);
  plain_connection(server.server.port()).reset();
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !server.left.empty(); }));
  EXPECT_TRUE(contains(server.left[0], "127.0.0.1: the peer closed the connection"));
  EXPECT_TRUE(server.refused.empty());
  plain_connection(server.server.port()).reset();
  Client wrong(loop, towards("127.0.0.1", server.server.port(), "another secret!!"));
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !server.refused.empty(); }));
  EXPECT_TRUE(contains(server.refused[0], "the secret differs")) << "it must still be named";
  EXPECT_EQ(server.left.size(), 1u);
}

TEST(Link, a_server_may_listen_at_several_addresses) {
  EventLoop loop;
  Server server(loop);
  server.server.also_listen(lockstep::listen_on("127.0.0.2", server.server.port()));
  Client first(loop, towards("127.0.0.1", server.server.port()));
  Client second(loop, towards("127.0.0.2", server.server.port()));
  EXPECT_TRUE(within_ten_seconds(loop, [&] { return first.opened && second.opened; }));
}

TEST(Link, who_stays_silent_is_dropped_after_the_handshake_timeout) {
  EventLoop loop;
  Server server(loop, {.secret = kSecret, .limits = {.handshake_timeout = milliseconds(50)}});
  const UniqueFd silent = plain_connection(server.server.port());
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !server.refused.empty(); }));
  EXPECT_TRUE(contains(server.refused[0], "did not finish the handshake in 0.05 s"));
}

TEST(Link, strangers_in_numbers_do_not_keep_an_agent_out) {
  EventLoop loop;
  Server server(loop, {.secret = kSecret, .max_strangers = 4});
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 40; ++i) strangers.push_back(plain_connection(server.server.port()));
  Client client(loop, server);
  EXPECT_TRUE(within_ten_seconds(loop, [&] { return client.opened; }));
  EXPECT_EQ(server.refused.size(), 1u);
}

TEST(Link, whoever_floods_the_port_pushes_out_its_own_connections) {
  EventLoop loop;
  LinkServerOptions options{.secret = kSecret, .max_strangers = 4};
  Server server(loop, options);
  // Another address, that is slow to prove itself: it stays however many come after it.
  const UniqueFd slow = plain_connection(server.server.port(), "127.0.0.2");
  std::vector<UniqueFd> flood;
  for (int i = 0; i < 40; ++i) flood.push_back(plain_connection(server.server.port()));
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !server.refused.empty(); }));
  for (int i = 0; i < 20; ++i) loop.run_once(milliseconds(1));
  const auto is_open = [](const UniqueFd& socket) {
    char bytes[1024];
    ssize_t got = 0;
    while ((got = ::recv(socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) continue;
    return got < 0 && errno == EAGAIN;
  };
  EXPECT_TRUE(is_open(slow));
  EXPECT_EQ(std::ranges::count_if(flood, is_open), 3);
  EXPECT_EQ(server.refused.size(), 1u);
}

TEST(Link, many_addresses_that_are_turned_away_fill_no_log) {
  EventLoop loop;
  Server server(loop);
  for (int i = 1; i <= 60; ++i) {
    const UniqueFd stranger =
        plain_connection(server.server.port(), "127.0.1." + std::to_string(i));
    ASSERT_EQ(::send(stranger.get(), "GET / HTTP", 10, MSG_NOSIGNAL), 10);
    loop.run_once(milliseconds(20));
  }
  ASSERT_TRUE(within_ten_seconds(
      loop, [&] { return server.refused.size() == LinkServer::kMaxReportedAddresses + 1; }));
  EXPECT_TRUE(contains(server.refused.back(), "further ones are not named"));
}

TEST(Link, a_client_waits_no_longer_than_the_handshake_timeout_for_a_server_that_says_nothing) {
  EventLoop loop;
  const UniqueFd listener = lockstep::listen_on("127.0.0.1", 0);
  LinkClientOptions options = towards("127.0.0.1", lockstep::port_of(listener));
  options.limits.handshake_timeout = milliseconds(50);
  Client client(loop, options);
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !client.closed.empty(); }));
  EXPECT_TRUE(contains(client.closed, "did not finish the handshake")) << client.closed;
}

TEST(Link, a_port_where_nobody_listens_is_named) {
  EventLoop loop;
  UniqueFd listener = lockstep::listen_on("127.0.0.1", 0);
  const int port = lockstep::port_of(listener);
  listener.reset();
  Client client(loop, towards("127.0.0.1", port));
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !client.closed.empty(); }));
  const std::string reason =
      lockstep::concat("cannot connect to 127.0.0.1:", port, " (127.0.0.1: Connection refused)");
  EXPECT_TRUE(client.closed.starts_with(reason + ": nothing listens on port")) << client.closed;
  LinkClientOptions options = towards("127.0.0.1", port);
  options.advises = false;
  Client other(loop, options);
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !other.closed.empty(); }));
  EXPECT_EQ(other.closed, lockstep::concat("port ", port, ": Connection refused"));
}

TEST(Link, a_name_that_nobody_knows_is_named) {
  EventLoop loop;
  Client client(loop, towards("no-such-host.invalid", 1));
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !client.closed.empty(); }));
  EXPECT_TRUE(contains(client.closed, "'no-such-host.invalid'")) << client.closed;
}

TEST(Link, each_side_learns_that_the_other_is_gone) {
  EventLoop loop;
  Server server(loop);
  auto client = std::make_unique<Client>(loop, server);
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return client->opened; }));
  client.reset();
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !server.closed.empty(); }));
  EXPECT_EQ(server.closed[server.opened[0]], "the peer closed the connection");

  auto second_server = std::make_unique<Server>(loop);
  Client second(loop, *second_server);
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return second.opened; }));
  second_server.reset();
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !second.closed.empty(); }));
  EXPECT_EQ(second.closed, "the peer closed the connection");
  EXPECT_FALSE(second.client.open());
}

TEST(Link, closing_first_sends_what_is_queued) {
  EventLoop loop;
  Server server(loop);
  Client client(loop, server);
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return client.opened; }));
  const auto id = server.opened.at(0);
  for (int i = 0; i < 4; ++i) {
    server.server.send(id, std::string(LinkSession::kMaxMessageBytes, 'x'));
  }
  server.server.send(id, "the end");
  server.server.close(id);
  EXPECT_GT(server.server.queued_bytes(), 0u);
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !client.closed.empty(); }));
  EXPECT_EQ(client.messages.back(), "the end");
  EXPECT_EQ(server.server.queued_bytes(), 0u);
  EXPECT_TRUE(server.closed.empty()) << "who closes needs no callback";
}

TEST(Link, a_peer_that_reads_nothing_is_dropped_when_its_queue_is_full) {
  EventLoop loop;
  Server server(loop, {.secret = kSecret, .limits = {.max_queued_bytes = 20 << 20}});
  // The reader has a loop of its own, which stops turning.
  EventLoop stuck;
  Client client(stuck, server);
  ASSERT_TRUE(within_ten_seconds(loop, [&] {
    stuck.run_once(milliseconds(1));
    return client.opened;
  }));
  const std::string large(4 << 19, 'x');
  for (int i = 0; i < 40; ++i) server.server.send(server.opened[0], large);
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !server.closed.empty(); }));
  EXPECT_TRUE(contains(server.closed[server.opened[0]], "reads too slowly"));
}

TEST(Link, a_peer_that_takes_nothing_for_too_long_is_dropped) {
  EventLoop loop;
  Server server(loop, {.secret = kSecret, .limits = {.stall_timeout = milliseconds(100)}});
  EventLoop stuck;
  Client client(stuck, server);
  ASSERT_TRUE(within_ten_seconds(loop, [&] {
    stuck.run_once(milliseconds(1));
    return client.opened;
  }));
  const std::string large(4 << 19, 'x');
  for (int i = 0; i < 10; ++i) server.server.send(server.opened[0], large);
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !server.closed.empty(); }));
  EXPECT_TRUE(contains(server.closed[server.opened[0]], "took nothing for 0.1 s"));
}

TEST(Link, a_client_may_be_destroyed_in_each_of_its_callbacks) {
  EventLoop loop;
  Server server(loop);
  for (const std::string where : {"open", "message", "close"}) {
    std::unique_ptr<LinkClient> client;
    std::string marker = where;  // captured: a destroyed callback would show under ASan
    const auto destroy = [&client, marker](const std::string& here) {
      if (here == marker) client.reset();
      EXPECT_FALSE(marker.empty());
    };
    client = std::make_unique<LinkClient>(
        loop,
        towards("127.0.0.1", server.server.port(),
                where == "close" ? "a wrong secret, long" : kSecret),
        LinkClient::Callbacks{
            .on_open = [destroy](const std::string&, const std::string&) { destroy("open"); },
            .on_message = [destroy](std::string) { destroy("message"); },
            .on_close = [destroy](const std::string&) { destroy("close"); }});
    ASSERT_TRUE(within_ten_seconds(loop, [&] {
      for (const auto id : server.opened) server.server.send(id, "hello");
      return client == nullptr;
    })) << where;
  }
}

TEST(Link, a_server_may_close_a_connection_in_its_callbacks) {
  EventLoop loop;
  LinkServer* handle = nullptr;
  LinkServer server(
      loop, lockstep::listen_on("127.0.0.1", 0), {.secret = kSecret},
      {.on_open = [](auto, const auto&, const auto&) {},
       .on_message = [&](LinkServer::Id id, const std::string&) { handle->close(id); },
       .on_close = [](auto, const auto&) { FAIL(); },
       .on_refused = [](const auto&, const auto&) { FAIL(); }});
  handle = &server;
  Client client(loop, towards("127.0.0.1", server.port()));
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return client.opened; }));
  client.client.send("one");
  client.client.send("two");
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !client.closed.empty(); }));
}

TEST(Link, insecure_on_both_sides_works_and_on_one_side_is_named) {
  EventLoop loop;
  Server server(loop, {.secret = ""});
  Client open(loop, server, "");
  EXPECT_TRUE(within_ten_seconds(loop, [&] { return open.opened; }));
  Client secured(loop, server);
  ASSERT_TRUE(within_ten_seconds(loop, [&] { return !secured.closed.empty(); }));
  EXPECT_TRUE(contains(secured.closed, "--insecure")) << secured.closed;
}

TEST(Link, a_listener_everywhere_serves_both_families) {
  const UniqueFd listener = lockstep::listen_everywhere(0);
  EXPECT_TRUE(plain_connection(lockstep::port_of(listener)));
}
