#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "doctor/probe_client.h"
#include "doctor/probe_server.h"
#include "launch/link_socket.h"
#include "launch/listen.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr const char* kSecret = "0123456789abcdef0123456789abcdef";

// A server on loopback, and limits that a busy machine keeps.
class Probe : public ::testing::Test {
 protected:
  ProbeAnswer::Way ask(const std::string& id, const std::string& secret, bool measure = false) {
    return ask(server_.listeners().at(0).port, id, secret, measure);
  }

  ProbeAnswer::Way ask(int port, const std::string& id, const std::string& secret, bool measure) {
    const ProbeQuestion question{
        .id = id, .targets = {{.address = "127.0.0.1", .port = port, .measure = measure}}};
    const ProbeAnswer answer = probe(question, {.secret = secret, .tls = tls_},
                                     {.connect = std::chrono::seconds(20),
                                      .stall = std::chrono::seconds(20),
                                      .measure = std::chrono::milliseconds(5),
                                      .round_trips = 5});
    EXPECT_EQ(answer.ways.size(), 1u);
    return answer.ways.at(0);
  }

  UniqueFd connect() { return connect(server_.listeners().at(0).port); }

  UniqueFd connect(int port) {
    UniqueFd socket = begin_connect(IpAddress::parse("127.0.0.1").value(), port);
    sockaddr_storage peer;
    socklen_t size = sizeof peer;
    while (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &size) != 0) {
      ::usleep(1000);
    }
    return socket;
  }

  bool tls_ = false;
  ProbeServer server_{{{.address = IpAddress::parse("127.0.0.1").value(), .prefix_bits = 8}},
                      {.secret = kSecret, .id = "node1"}};
};

TEST_F(Probe, a_way_is_measured) {
  const auto way = ask("node1", kSecret, /*measure=*/true);
  EXPECT_EQ(way.problem, "");
  EXPECT_GT(way.least_latency_us, 0);
  EXPECT_GE(way.latency_us, way.least_latency_us);
  EXPECT_GT(way.path_mtu, 0);
  EXPECT_FALSE(way.stalled);
  EXPECT_GT(way.bytes_per_second.value_or(0), 0);
  EXPECT_FALSE(ask("node1", kSecret, /*measure=*/false).bytes_per_second.has_value());
}

TEST_F(Probe, a_way_is_measured_by_encrypted_words) {
  const ProbeServer server({{.address = IpAddress::parse("127.0.0.1").value(), .prefix_bits = 8}},
                           {.secret = kSecret, .tls = true, .id = "node2"});
  tls_ = true;
  const auto way = ask(server.listeners().at(0).port, "node2", kSecret, /*measure=*/true);
  EXPECT_EQ(way.problem, "");
  EXPECT_GT(way.bytes_per_second.value_or(0), 0);
  EXPECT_NE(ask("node1", kSecret).problem, "") << "the other end does not encrypt";
}

TEST_F(Probe, who_answers_must_be_the_right_node) {
  EXPECT_NE(ask("node2", kSecret).problem.find("another node"), std::string::npos);
}

TEST_F(Probe, both_ends_need_the_secret) {
  EXPECT_NE(ask("node1", "fedcba9876543210fedcba9876543210").problem.find("secret"),
            std::string::npos);
  EXPECT_NE(ask("node1", "").problem, "");
}

TEST_F(Probe, nobody_there_is_said) {
  int port = 0;
  {
    const UniqueFd listener = listen_on("127.0.0.1", 0);
    port = port_of(listener);
  }
  EXPECT_EQ(ask(port, "node1", kSecret, false).problem, "Connection refused");
  EXPECT_NE(probe({.id = "x", .targets = {{.address = "nowhere", .port = 1}}}, {}).ways[0].problem,
            "");
}

TEST_F(Probe, strangers_hold_up_nobody) {
  std::vector<UniqueFd> silent;
  for (int at = 0; at < 8; ++at) silent.push_back(connect());
  const UniqueFd rude = connect();
  const std::string nonsense(64 << 10, '\xff');  // a length of four billion, to begin with
  ::send(rude.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
  EXPECT_EQ(ask("node1", kSecret).problem, "");
}

TEST_F(Probe, the_servers_end_is_that_of_all_conversations) {
  auto server = std::make_unique<ProbeServer>(
      std::vector<InterfaceAddress>{
          {.address = IpAddress::parse("127.0.0.1").value(), .prefix_bits = 8}},
      ProbeServer::Options{.secret = kSecret, .id = "node2"});
  const int port = server->listeners().at(0).port;
  const UniqueFd silent = connect(port);
  EXPECT_EQ(ask(port, "node2", kSecret, false).problem, "");  // so the first one was accepted
  server.reset();
  std::string said(4096, 0);
  ssize_t got = 0;
  do {
    pollfd waiting{.fd = silent.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&waiting, 1, 0), 1) << "it is still open";
    got = ::recv(silent.get(), said.data(), said.size(), 0);
  } while (got > 0);
  EXPECT_EQ(got, 0);
}

TEST(ProbeServer, an_address_that_is_not_here_is_left_out) {
  const ProbeServer server({{.address = IpAddress::parse("192.0.2.77").value(), .prefix_bits = 24},
                            {.address = IpAddress::parse("127.0.0.1").value(), .prefix_bits = 8}},
                           {.secret = "", .id = "node1"});
  ASSERT_EQ(server.listeners().size(), 1u);
  EXPECT_EQ(server.listeners()[0].address, "127.0.0.1");
}

}  // namespace
}  // namespace lockstep
