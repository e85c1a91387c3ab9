#include "launch/network_candidates.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

LocalAddress local(const std::string& address, const std::string& interface, int prefix = 24) {
  return {.address = IpAddress::parse(address).value(),
          .interface = interface,
          .up = true,
          .prefix_length = prefix};
}

LocalMachine machine() {
  LocalMachine machine{.name = "node",
                       .addresses = {local("127.0.0.1", "lo", 8),
                                     local("172.17.0.1", "docker0", 16), local("10.0.0.7", "eth0"),
                                     local("10.1.0.7", "eth1"), local("fd00::7", "eth1", 64),
                                     local("fe80::7", "eth1", 64), local("192.168.9.7", "eth9")}};
  machine.addresses.back().up = false;
  return machine;
}

int speed(const std::string& interface) {
  return interface == "eth1" ? 100000 : interface == "eth0" ? 1000 : 0;
}

std::vector<std::string> texts(const Addresses& answer, bool allowed_only = false) {
  std::vector<std::string> all;
  for (const NodeAddress& each : answer.addresses) {
    if (each.allowed || !allowed_only) all.push_back(each.address);
  }
  return all;
}

using Texts = std::vector<std::string>;

TEST(NetworkCandidates, TheFavouriteIsFirstThenTheFasterAndBridgesLast) {
  const Addresses answer = network_candidates(machine(), {.favourite = "10.0.0.7"}, speed);
  EXPECT_EQ(texts(answer), (Texts{"10.0.0.7", "10.1.0.7", "fd00::7", "172.17.0.1"}));
  EXPECT_EQ(answer.addresses[1].prefix_length, 24);
  EXPECT_EQ(answer.addresses[1].interface, "eth1");
  EXPECT_EQ(answer.named_by, "");
}

TEST(NetworkCandidates, LocalAddrAllowsNoOther) {
  const Addresses answer =
      network_candidates(machine(), {.favourite = "10.1.0.7", .is_pinned = true}, speed);
  EXPECT_EQ(texts(answer, true), Texts{"10.1.0.7"});
  EXPECT_EQ(texts(answer).size(), 4u);
  EXPECT_EQ(answer.named_by, "--local-addr");
}

TEST(NetworkCandidates, NamedInterfacesComeBeforeTheFavourite) {
  const Addresses answer =
      network_candidates(machine(), {.favourite = "10.0.0.7", .gloo = "eth1"}, speed);
  EXPECT_EQ(texts(answer, true), (Texts{"10.1.0.7", "fd00::7"}));
  EXPECT_EQ(answer.addresses.front().address, "10.1.0.7");
  EXPECT_EQ(answer.named_by, "GLOO_SOCKET_IFNAME=eth1");
}

TEST(NetworkCandidates, AnInterfaceThatIsNotThereRulesNothingOut) {
  const Addresses answer =
      network_candidates(machine(), {.favourite = "10.0.0.7", .gloo = "ib0"}, speed);
  EXPECT_EQ(texts(answer, true).size(), 4u);
  EXPECT_EQ(answer.named_by, "");
}

TEST(NetworkCandidates, NamesForNcclAreBeginningsWholeOnesOrExceptions) {
  EXPECT_TRUE(nccl_takes("eth", "eth1"));
  EXPECT_TRUE(nccl_takes("ib,eth", "eth1"));
  EXPECT_FALSE(nccl_takes("=eth", "eth1"));
  EXPECT_TRUE(nccl_takes("=eth1", "eth1"));
  EXPECT_FALSE(nccl_takes("^docker,lo", "docker0"));
  EXPECT_TRUE(nccl_takes("^docker,lo", "eth1"));
  EXPECT_TRUE(nccl_takes("^=docker", "docker0"));
}

TEST(NetworkCandidates, AnAddressThatOnlyARouterHasIsKept) {
  const Addresses answer =
      network_candidates(machine(), {.favourite = "203.0.113.5", .is_pinned = true}, speed);
  EXPECT_EQ(texts(answer, true), Texts{"203.0.113.5"});
}

TEST(NetworkCandidates, ThereAreNeverMoreThanEight) {
  LocalMachine many = machine();
  for (int i = 0; i < 20; ++i)
    many.addresses.push_back(local("10.5." + std::to_string(i) + ".1", "eth2"));
  const Addresses answer =
      network_candidates(many, {.favourite = "10.0.0.7", .gloo = "eth0"}, speed);
  EXPECT_EQ(answer.addresses.size(), 8u);
  EXPECT_EQ(answer.addresses.front().address, "10.0.0.7");
}

}  // namespace
}  // namespace lockstep
