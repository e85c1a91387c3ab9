#include "launch/network_choice.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

NodeAddress at(const std::string& address, const std::string& interface, int prefix = 24,
               int speed = 0) {
  return {.address = address, .prefix_length = prefix, .interface = interface, .speed = speed};
}

// "b" is number 1: 10.0.0.2 on eth0, 10.1.0.2 on eth1.
SurveyedNode two_networks(const std::string& host, int slow = 1000, int fast = 1000) {
  const std::string last = std::to_string(host[0] - 'a' + 1);
  return {
      .host = host,
      .addresses = {at("10.0.0." + last, "eth0", 24, slow), at("10.1.0." + last, "eth1", 24, fast)},
      .named_by = ""};
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(NetworkChoice, NetworksHaveTheirUsualNames) {
  EXPECT_EQ(network_name(at("10.1.2.3", "eth0", 24)), "10.1.2.0/24");
  EXPECT_EQ(network_name(at("10.1.2.3", "eth0", 20)), "10.1.0.0/20");
  EXPECT_EQ(network_name(at("10.1.2.3", "eth0", 32)), "10.1.2.3/32");
  EXPECT_EQ(network_name(at("fd00:1:2::7", "eth0", 48)), "fd00:1:2::/48");
}

TEST(NetworkChoice, WhereAllAreReachedTheFavouritesAreTaken) {
  const auto choice = choose_network({two_networks("a", 1000, 100000), two_networks("b")}, {});
  EXPECT_EQ(choice.addresses, (std::vector{0, 0}));
  EXPECT_EQ(choice.text, "network: 10.0.0.0/24 (eth0) on all 2 nodes");
}

TEST(NetworkChoice, OneThatIsNotReachedMovesAllToAnotherNetwork) {
  const auto choice = choose_network({two_networks("a"), two_networks("b"), two_networks("c")},
                                     {{.from = 2, .node = 1, .address = 0, .reason = "no answer"}});
  EXPECT_EQ(choice.addresses, (std::vector{1, 1, 1}));
  EXPECT_EQ(choice.text,
            "network: 10.1.0.0/24 (eth1) on all 3 nodes; c does not reach b at 10.0.0.2 (eth0): no "
            "answer");
}

TEST(NetworkChoice, OfTheOthersTheFasterIsTaken) {
  std::vector<SurveyedNode> nodes = {two_networks("a"), two_networks("b")};
  for (SurveyedNode& node : nodes) {
    node.addresses.push_back(
        at("10.2.0." + node.addresses[0].address.substr(7), "ib0", 24, 200000));
    node.addresses.push_back(at("fd00::" + node.addresses[0].address.substr(7), "ib0", 64, 200000));
  }
  const auto choice = choose_network(nodes, {{.from = 0, .node = 1, .address = 0, .reason = "x"}});
  EXPECT_EQ(choice.addresses, (std::vector{2, 2}));
}

TEST(NetworkChoice, NetworksThatRoutersJoinAreOneByTheNameOfTheirInterface) {
  const std::vector<SurveyedNode> nodes = {
      {.host = "a", .addresses = {at("10.0.1.1", "eth0"), at("10.9.1.1", "eth1")}, .named_by = ""},
      {.host = "b", .addresses = {at("10.0.2.1", "eth0"), at("10.9.2.1", "eth1")}, .named_by = ""}};
  const auto choice = choose_network(nodes, {{.from = 0, .node = 1, .address = 0, .reason = "x"}});
  EXPECT_EQ(choice.addresses, (std::vector{1, 1}));
  EXPECT_TRUE(has(choice.text, "network: eth1 (10.9.1.1, 10.9.2.1) on all 2 nodes")) << choice.text;
}

TEST(NetworkChoice, WhereNothingIsCommonEachNodeHasItsOwn) {
  const std::vector<SurveyedNode> nodes = {
      {.host = "a", .addresses = {at("10.0.1.1", "eth0")}, .named_by = ""},
      {.host = "b", .addresses = {at("10.0.2.1", "ens3"), at("10.0.3.1", "ens4")}, .named_by = ""}};
  const auto choice = choose_network(nodes, {{.from = 0, .node = 1, .address = 0, .reason = "x"}});
  EXPECT_EQ(choice.addresses, (std::vector{0, 1}));
}

TEST(NetworkChoice, ANodeThatNobodyReachesIsNamedWithThePairs) {
  const std::vector<Unreached> unreached = {{0, 1, 0, "no answer"},
                                            {0, 1, 1, "no answer"},
                                            {2, 1, 0, "no answer"},
                                            {2, 1, 1, "no answer"}};
  const auto choice =
      choose_network({two_networks("a"), two_networks("b"), two_networks("c")}, unreached);
  EXPECT_TRUE(choice.addresses.empty());
  EXPECT_TRUE(
      has(choice.text, "because of node b: a does not reach b at 10.0.0.2 (eth0): no answer"))
      << choice.text;
  EXPECT_TRUE(has(choice.text, "firewall")) << choice.text;
}

TEST(NetworkChoice, ANodeThatReachesNobodyIsTheOneThatIsNamed) {
  const std::vector<Unreached> unreached = {{2, 0, 0, "no answer"},
                                            {2, 0, 1, "no answer"},
                                            {2, 1, 0, "no answer"},
                                            {2, 1, 1, "no answer"}};
  const auto choice =
      choose_network({two_networks("a"), two_networks("b"), two_networks("c")}, unreached);
  EXPECT_TRUE(has(choice.text, "because of node c: c does not reach a")) << choice.text;
}

TEST(NetworkChoice, WhereTheUserNamedTheWrongOneTheRightOneIsAdvised) {
  std::vector<SurveyedNode> nodes = {two_networks("a"), two_networks("b")};
  nodes[1].named_by = "GLOO_SOCKET_IFNAME=eth1";
  nodes[1].addresses = {at("10.1.0.2", "eth1"), at("10.0.0.2", "eth0")};
  nodes[1].addresses[1].allowed = false;
  const auto choice =
      choose_network(nodes, {{.from = 0, .node = 1, .address = 0, .reason = "no answer"}});
  EXPECT_TRUE(choice.addresses.empty());
  EXPECT_TRUE(has(choice.text,
                  "a does not reach b at 10.1.0.2 (eth1): no answer; over 10.0.0.0/24 "
                  "(eth0) all nodes reach each other: correct or leave out "
                  "GLOO_SOCKET_IFNAME=eth1 on b"))
      << choice.text;
}

}  // namespace
}  // namespace lockstep
