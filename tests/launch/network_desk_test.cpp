#include "launch/network_desk.h"

#include <gtest/gtest.h>

#include "launch/listen.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

/// A node on this machine, and what it has answered.
struct Node {
  explicit Node(EventLoop& loop, const std::string& id,
                const std::string& secret = "0123456789abcdef")
      : plan(plan_of(id, secret)),
        desk(loop, plan, [this](const Message& message) { answers.push_back(message); }) {}

  static JobPlan plan_of(const std::string& id, const std::string& secret) {
    JobPlan plan{.options = {}, .environment = Environment(Environment::Variables{})};
    plan.agent.self.id = id;
    plan.agent.self.address = "127.0.0.1";
    plan.options.local_addr = "127.0.0.1";
    plan.secret = secret;
    return plan;
  }

  /// The port at which it answers probes.
  int listen() {
    desk.on_message(AskAddresses{1});
    const auto& addresses = std::get<Addresses>(answers.back()).addresses;
    EXPECT_EQ(addresses.front().address, "127.0.0.1");
    EXPECT_TRUE(addresses.front().allowed);
    return addresses.front().port;
  }

  JobPlan plan;
  std::vector<Message> answers;
  NetworkDesk desk;
};

class NetworkDeskTest : public ::testing::Test {
 protected:
  ProbeTarget target(int number, const std::string& id, int port) {
    return {.node = number, .address = 0, .id = id, .at = "127.0.0.1", .port = port};
  }

  /// What of these is not reached.
  std::vector<ProbeFailure> probe(Node& node, const std::vector<ProbeTarget>& targets) {
    node.answers.clear();
    node.desk.on_message(ProbeNodes{7, targets});
    const auto limit = EventLoop::Clock::now() + 20s;
    while (node.answers.empty() && EventLoop::Clock::now() < limit) loop_.run_once(20ms);
    EXPECT_FALSE(node.answers.empty());
    const auto probed = std::get<Probed>(node.answers.at(0));
    EXPECT_EQ(probed.round, 7u);
    return probed.failures;
  }

  EventLoop loop_;
};

TEST_F(NetworkDeskTest, ANodeThatListensIsReached) {
  Node one(loop_, "one"), other(loop_, "other");
  EXPECT_TRUE(probe(one, {target(1, "other", other.listen())}).empty());
  EXPECT_TRUE(probe(one, {}).empty());
}

TEST_F(NetworkDeskTest, AnotherNodeAtTheSameAddressIsNotMistakenForIt) {
  Node one(loop_, "one"), other(loop_, "other");
  const auto failures = probe(one, {target(1, "a third", other.listen())});
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].node, 1);
}

TEST_F(NetworkDeskTest, WhoeverDoesNotHaveTheSecretIsNoNode) {
  Node one(loop_, "one"), other(loop_, "other", "another secret 0123");
  EXPECT_EQ(probe(one, {target(1, "other", other.listen())}).size(), 1u);
}

TEST_F(NetworkDeskTest, PortsAreClosedWhenAnEpochIsPrepared) {
  Node one(loop_, "one"), other(loop_, "other");
  const int port = other.listen();
  other.desk.on_message(Prepare{});
  const auto failures = probe(one, {target(1, "other", port)});
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_NE(failures[0].reason.find("Connection refused"), std::string::npos) << failures[0].reason;
}

TEST_F(NetworkDeskTest, AnAddressThatAnswersNothingTakesTwoSeconds) {
  Node one(loop_, "one"), other(loop_, "other");
  const UniqueFd silent = listen_on("127.0.0.1", 0);
  const auto begin = EventLoop::Clock::now();
  const auto failures =
      probe(one, {target(1, "other", other.listen()), target(2, "silent", port_of(silent))});
  EXPECT_GE(EventLoop::Clock::now() - begin, 1900ms);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].node, 2);
  EXPECT_EQ(failures[0].reason, "no answer");
}

}  // namespace
}  // namespace lockstep
