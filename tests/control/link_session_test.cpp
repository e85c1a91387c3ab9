#include "control/link_session.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "tests/support/said.h"

using lockstep::encode_frame;
using lockstep::LinkRole;
using lockstep::LinkSession;
using lockstep::LinkSessionOptions;
using lockstep::testing::contains;

namespace {

constexpr const char* kSecret = "0123456789abcdef0123456789abcdef";

LinkSession make(LinkRole role, const std::string& secret = kSecret,
                 const std::string& run_id = "job") {
  return LinkSession({.role = role,
                      .secret = secret,
                      .run_id = run_id,
                      .nonce = std::string(32, role == LinkRole::client ? 'c' : 's')});
}

struct Ends {
  LinkSession client, server;
  LinkSession::Result at_client, at_server;
};

// Lets the two talk until neither has more to say.
Ends shake_hands(LinkSession client, LinkSession server) {
  Ends ends{std::move(client), std::move(server), {}, {}};
  std::string to_client = ends.server.start();
  while (!to_client.empty()) {
    ends.at_client = ends.client.receive(to_client);
    if (ends.at_client.send.empty()) break;
    ends.at_server = ends.server.receive(ends.at_client.send);
    to_client = ends.at_server.send;
  }
  return ends;
}

Ends established() {
  Ends ends = shake_hands(make(LinkRole::client), make(LinkRole::server));
  EXPECT_TRUE(ends.at_client.established && ends.at_server.established);
  return ends;
}

std::string reason(const LinkSession::Result& result) {
  return result.closed_because.value_or("");
}

}  // namespace

TEST(LinkSession, carries_messages_both_ways_after_the_handshake) {
  Ends ends = established();
  std::string bytes = ends.client.seal("one");
  bytes += ends.client.seal("");  // a second statement: the two are numbered in this order
  const auto at_server = ends.server.receive(bytes);
  EXPECT_EQ(at_server.messages, (std::vector<std::string>{"one", ""}));
  EXPECT_TRUE(at_server.established);
  const std::string largest(LinkSession::kMaxMessageBytes, 'x');
  EXPECT_EQ(ends.client.receive(ends.server.seal(largest)).messages.at(0), largest);
  EXPECT_THROW(ends.server.seal(largest + 'x'), lockstep::InvalidArgument);
}

TEST(LinkSession, works_when_bytes_come_one_by_one) {
  LinkSession client = make(LinkRole::client), server = make(LinkRole::server);
  const auto feed = [](LinkSession& session, const std::string& bytes) {
    std::string answer;
    for (const char byte : bytes) answer += session.receive(std::string_view(&byte, 1)).send;
    return answer;
  };
  feed(client, feed(server, feed(client, server.start())));
  ASSERT_TRUE(client.established() && server.established());
  const std::string sealed = client.seal("hello");
  feed(server, sealed.substr(0, sealed.size() - 1));
  EXPECT_EQ(server.receive(sealed.substr(sealed.size() - 1)).messages.at(0), "hello");
}

TEST(LinkSession, names_a_wrong_secret_on_both_sides) {
  const Ends ends =
      shake_hands(make(LinkRole::client, "another secret, long enough"), make(LinkRole::server));
  EXPECT_TRUE(contains(reason(ends.at_server), "the secret differs")) << reason(ends.at_server);
  EXPECT_TRUE(contains(reason(ends.at_client), "the peer refused: the secret differs"));
  EXPECT_FALSE(ends.at_client.established || ends.at_server.established);
}

TEST(LinkSession, names_a_side_without_a_secret) {
  const Ends no_client = shake_hands(make(LinkRole::client, ""), make(LinkRole::server));
  EXPECT_TRUE(contains(reason(no_client.at_client), "the secret differs"));
  EXPECT_TRUE(contains(reason(no_client.at_client), "this was started with --insecure"));
  EXPECT_TRUE(contains(reason(no_client.at_server), "--insecure"));
  const Ends no_server = shake_hands(make(LinkRole::client), make(LinkRole::server, ""));
  EXPECT_TRUE(contains(reason(no_server.at_client), "the other was started with --insecure"));
  EXPECT_TRUE(contains(reason(no_server.at_server), "the peer refused"));
}

TEST(LinkSession, a_server_insists_on_a_secret_even_if_the_client_claims_to_have_one) {
  // A client that says it has a secret and proves nothing, as an insecure one would.
  LinkSession server = make(LinkRole::server);
  std::string hello = lockstep::encode_hello(lockstep::HandshakeKind::client_hello,
                                             {.has_secret = true, .nonce = std::string(32, 'x')});
  const auto result = server.receive(encode_frame(hello + std::string(32, '\0')));
  EXPECT_TRUE(contains(reason(result), "the secret differs"));
  LinkSession another = make(LinkRole::server);
  EXPECT_TRUE(contains(reason(another.receive(encode_frame(hello))), "the secret differs"));
}

TEST(LinkSession, names_another_run_id_to_both_and_only_to_who_has_the_secret) {
  const Ends ends =
      shake_hands(make(LinkRole::client, kSecret, "4711"), make(LinkRole::server, kSecret, "815"));
  EXPECT_TRUE(contains(reason(ends.at_server), "--rdzv-id='4711', this job is '815'"));
  EXPECT_TRUE(contains(reason(ends.at_client), "this job is '815'"));
  const Ends stranger = shake_hands(make(LinkRole::client, "another secret, long enough", "4711"),
                                    make(LinkRole::server, kSecret, "815"));
  EXPECT_FALSE(contains(reason(stranger.at_client), "815"));
}

TEST(LinkSession, names_another_protocol_version) {
  LinkSession client = make(LinkRole::client);
  const auto result = client.receive(encode_frame(lockstep::encode_hello(
      lockstep::HandshakeKind::server_hello, {.oldest_version = 7,
                                              .newest_version = 9,
                                              .has_secret = true,
                                              .nonce = std::string(32, 's')})));
  EXPECT_TRUE(contains(reason(result), "the protocol versions differ")) << reason(result);
  EXPECT_TRUE(contains(reason(result), "the peer 7 to 9"));
}

TEST(LinkSession, an_older_and_a_newer_version_meet_in_the_middle) {
  LinkSession client = make(LinkRole::client);
  const auto result = client.receive(encode_frame(lockstep::encode_hello(
      lockstep::HandshakeKind::server_hello, {.oldest_version = 1,
                                              .newest_version = 9,
                                              .has_secret = true,
                                              .nonce = std::string(32, 's')})));
  EXPECT_EQ(reason(result), "");
  EXPECT_FALSE(result.send.empty());
}

TEST(LinkSession, refuses_a_server_that_cannot_prove_that_it_has_the_secret) {
  LinkSession client = make(LinkRole::client);
  client.receive(make(LinkRole::server).start());
  const auto result = client.receive(encode_frame("\x03" + std::string(32, 'x')));
  EXPECT_TRUE(contains(reason(result), "the secret differs"));
  EXPECT_FALSE(result.established);
}

TEST(LinkSession, refuses_a_proof_that_was_recorded_in_another_handshake) {
  LinkSession client = make(LinkRole::client);
  const std::string recorded = client.receive(make(LinkRole::server).start()).send;
  LinkSession other({.role = LinkRole::server,
                     .secret = kSecret,
                     .run_id = "job",
                     .nonce = std::string(32, 't')});
  EXPECT_TRUE(contains(reason(other.receive(recorded)), "the secret differs"));
}

TEST(LinkSession, refuses_its_own_messages_reflected) {
  Ends ends = established();
  EXPECT_TRUE(contains(reason(ends.client.receive(ends.client.seal("hello"))), "forged"));
  LinkSession server = make(LinkRole::server);
  EXPECT_TRUE(contains(reason(server.receive(server.start())), "does not speak"));
}

TEST(LinkSession, refuses_a_replayed_a_lost_and_a_reordered_frame) {
  Ends replay = established();
  const std::string once = replay.client.seal("stop");
  EXPECT_EQ(replay.server.receive(once).messages.size(), 1u);
  EXPECT_TRUE(contains(reason(replay.server.receive(once)), "frame 0 came where 1 was due"));

  Ends reordered = established();
  const std::string first = reordered.client.seal("a");
  const auto result = reordered.server.receive(reordered.client.seal("b") + first);
  EXPECT_TRUE(contains(reason(result), "frame 1 came where 0 was due"));
  EXPECT_TRUE(result.messages.empty());
}

TEST(LinkSession, refuses_a_frame_with_any_bit_changed) {
  const std::string sealed = established().client.seal("stop");
  for (std::size_t place = 4; place < sealed.size();
       ++place) {  // the length before it: fewer bytes
    Ends ends = established();
    std::string changed = sealed;
    changed[place] ^= 1;
    const auto result = ends.server.receive(changed);
    ASSERT_TRUE(contains(reason(result), "changed on its way")) << place;
    ASSERT_TRUE(result.tampered);
    ASSERT_TRUE(result.messages.empty());
  }
}

TEST(LinkSession, stays_closed) {
  Ends ends = established();
  ends.server.receive(encode_frame("short"));
  const auto later = ends.server.receive(ends.client.seal("hello"));
  EXPECT_TRUE(later.messages.empty());
  EXPECT_FALSE(later.established);
}

TEST(LinkSession, keeps_little_of_a_stranger_and_says_what_it_is_not) {
  LinkSession server = make(LinkRole::server);
  const auto result = server.receive("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(contains(reason(result), "does not speak lockstep's protocol")) << reason(result);
  LinkSession patient = make(LinkRole::server);
  const std::string too_long = encode_frame(std::string(4096, 'x'));
  EXPECT_TRUE(contains(reason(patient.receive(too_long.substr(0, 4))), "at most 1024"));
}

TEST(LinkSession, without_a_secret_on_both_sides_messages_pass_and_their_order_is_checked) {
  Ends ends = shake_hands(make(LinkRole::client, ""), make(LinkRole::server, ""));
  const std::string sealed = ends.client.seal("hello");
  EXPECT_EQ(ends.server.receive(sealed).messages.at(0), "hello");
  EXPECT_TRUE(contains(reason(ends.server.receive(sealed)), "came where 1 was due"));
}

TEST(LinkSession, a_refusal_reaches_the_terminal_without_control_characters) {
  LinkSession client = make(LinkRole::client);
  const auto result = client.receive(encode_frame("\x04no\x1b[2Jway\n"));
  EXPECT_EQ(reason(result), "the peer refused: no?[2Jway?");
}

TEST(LinkSession, refuses_a_run_id_that_does_not_fit) {
  EXPECT_THROW(make(LinkRole::client, kSecret, std::string(513, 'x')), lockstep::InvalidArgument);
}
