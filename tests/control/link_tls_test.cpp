// Links that are encrypted (LinkSessionOptions::tls).
#include <string>

#include <gtest/gtest.h>

#include "control/link_session.h"
#include "tests/support/said.h"

using lockstep::LinkRole;
using lockstep::LinkSession;
using lockstep::testing::contains;

namespace {

constexpr const char* kTlsSecret = "0123456789abcdef0123456789abcdef";

LinkSession make_session(LinkRole role, bool tls = true, const std::string& secret = kTlsSecret) {
  return LinkSession({.role = role,
                      .secret = secret,
                      .tls = tls,
                      .run_id = "the-job",
                      .nonce = std::string(32, role == LinkRole::client ? 'c' : 's')});
}

struct TlsEnds {
  LinkSession client, server;
  std::string why_client, why_server;
  std::string wire;  // all that was sent

  TlsEnds(LinkSession one, LinkSession other) : client(std::move(one)), server(std::move(other)) {
    std::string to_client = server.start();
    for (int round = 0; round < 10 && !to_client.empty(); ++round) {
      const auto at_client = client.receive(to_client);
      if (at_client.closed_because) why_client = *at_client.closed_because;
      const auto at_server = server.receive(at_client.send);
      if (at_server.closed_because) why_server = *at_server.closed_because;
      wire += to_client + at_client.send;
      to_client = at_server.send;
    }
  }
};

}  // namespace

TEST(LinkTls, carries_messages_both_ways_that_nobody_can_read) {
  TlsEnds ends(make_session(LinkRole::client), make_session(LinkRole::server));
  ASSERT_TRUE(ends.client.established() && ends.server.established())
      << ends.why_client << ends.why_server;
  const std::string there = ends.client.seal("a message to the server");
  const std::string back = ends.server.seal("and one to the client");
  EXPECT_EQ(ends.server.receive(there).messages,
            std::vector<std::string>{"a message to the server"});
  EXPECT_EQ(ends.client.receive(back).messages, std::vector<std::string>{"and one to the client"});
  const std::string wire = ends.wire + there + back;
  EXPECT_FALSE(contains(wire, "message") || contains(wire, "the-job") ||
               contains(wire, kTlsSecret));
}

TEST(LinkTls, works_when_bytes_come_one_by_one_and_for_the_longest_message) {
  TlsEnds ends(make_session(LinkRole::client), make_session(LinkRole::server));
  ASSERT_TRUE(ends.client.established() && ends.server.established());
  std::vector<std::string> got;
  for (const char byte : ends.client.seal("one by one")) {
    for (auto& message : ends.server.receive({&byte, 1}).messages) got.push_back(message);
  }
  EXPECT_EQ(got, std::vector<std::string>{"one by one"});
  const std::string longest(LinkSession::kMaxMessageBytes, 'x');
  EXPECT_EQ(ends.client.receive(ends.server.seal(longest)).messages,
            std::vector<std::string>{longest});
}

TEST(LinkTls, another_secret_is_refused_by_both) {
  TlsEnds ends(make_session(LinkRole::client),
               make_session(LinkRole::server, true, "fedcba9876543210"));
  EXPECT_FALSE(ends.client.established() || ends.server.established());
  EXPECT_TRUE(contains(ends.why_server, "the secret differs")) << ends.why_server;
  EXPECT_TRUE(contains(ends.why_client, "the secret differs")) << ends.why_client;
}

TEST(LinkTls, one_side_without_it_hears_why) {
  for (const bool client_has_it : {true, false}) {
    TlsEnds ends(make_session(LinkRole::client, client_has_it),
                 make_session(LinkRole::server, !client_has_it));
    EXPECT_FALSE(ends.client.established() || ends.server.established());
    EXPECT_TRUE(contains(ends.why_client, "give --tls to all nodes or to none"));
    EXPECT_TRUE(contains(ends.why_server, "give --tls to all nodes or to none"));
  }
}

// Whoever is in the middle cannot talk the two out of it: each knows what it was told to do.
TEST(LinkTls, cannot_be_turned_off_on_the_way) {
  LinkSession client = make_session(LinkRole::client), server = make_session(LinkRole::server);
  std::string hello = server.start();
  const std::size_t flags = hello.find("LOCKSTEP") + 12;
  ASSERT_EQ(hello[flags], 3);
  hello[flags] = 1;
  const auto result = client.receive(hello);
  ASSERT_TRUE(result.closed_because);
  EXPECT_TRUE(contains(*result.closed_because, "--tls"));
}

// A bit of a record, the one that tells its kind or length among them.
TEST(LinkTls, a_changed_bit_is_noticed) {
  for (std::size_t place = 5; place < 40; ++place) {
    TlsEnds ends(make_session(LinkRole::client), make_session(LinkRole::server));
    std::string sealed = ends.client.seal("stop");
    sealed[place] ^= 1;
    const auto result = ends.server.receive(sealed);
    ASSERT_TRUE(result.tampered) << place;
    ASSERT_TRUE(result.messages.empty());
    const auto later = ends.server.receive(ends.client.seal("again"));
    ASSERT_TRUE(later.messages.empty() && !later.established);
  }
}

TEST(LinkTls, a_record_cannot_be_played_again) {
  TlsEnds ends(make_session(LinkRole::client), make_session(LinkRole::server));
  const std::string sealed = ends.client.seal("stop");
  EXPECT_EQ(ends.server.receive(sealed).messages.size(), 1u);
  const auto again = ends.server.receive(sealed);
  EXPECT_TRUE(again.messages.empty() && again.tampered);
}

TEST(LinkTls, strangers_who_speak_something_else_are_told_so) {
  LinkSession server = make_session(LinkRole::server);
  const auto result = server.receive("GET / HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(result.closed_because);
  EXPECT_TRUE(contains(result.send, "does not speak lockstep's protocol"));
}
