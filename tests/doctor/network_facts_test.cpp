#include "doctor/network_facts.h"

#include <gtest/gtest.h>
#include <filesystem>
#include <fstream>

#include "finding_support.h"
#include "tests/core/temporary_folder.h"

namespace lockstep {
namespace {

IpAddress ip(const std::string& text) {
  return IpAddress::parse(text).value();
}

NetworkFacts healthy_network() {
  NetworkFacts facts;
  facts.host = "node1";
  facts.host_addresses = {ip("10.0.0.1")};
  facts.interfaces = {{.name = "lo",
                       .up = true,
                       .carrier = true,
                       .loopback = true,
                       .addresses = {{ip("127.0.0.1"), 8}}},
                      {.name = "eth0",
                       .up = true,
                       .carrier = true,
                       .mtu = 1500,
                       .speed_mbit = 25000,
                       .addresses = {{ip("10.0.0.1"), 24}, {ip("fe80::1"), 64}}}};
  return facts;
}

Judged judge(const NetworkFacts& facts, bool several_nodes = true) {
  Judged judged;
  judge_network(facts, several_nodes, judged.list());
  EXPECT_TRUE(judged.every_problem_has_a_cure());
  return judged;
}

TEST(JudgeNetwork, a_healthy_network_has_nothing_but_good_findings) {
  const Judged judged = judge(healthy_network());
  for (const Finding& each : judged.all()) {
    EXPECT_EQ(each.level, FindingLevel::ok) << each.what;
  }
}

TEST(JudgeNetwork, a_name_that_means_nothing_loopback_or_another_machine_is_said) {
  NetworkFacts facts = healthy_network();
  facts.host_addresses = {ip("127.0.1.1")};
  EXPECT_EQ(judge(facts).worst("name"), FindingLevel::note);
  facts.host_addresses = {ip("10.0.0.99")};
  EXPECT_NE(judge(facts).text("name").find("10.0.0.99"), std::string::npos);
  EXPECT_EQ(judge(facts).worst("name"), FindingLevel::warning);
  facts.host_addresses = {};
  facts.resolver_problem = "Name or service not known";
  EXPECT_NE(judge(facts).text("name").find("not known"), std::string::npos);
}

TEST(JudgeNetwork, no_network_is_an_error_on_several_nodes_only) {
  NetworkFacts facts = healthy_network();
  facts.interfaces.pop_back();
  EXPECT_EQ(judge(facts, /*several_nodes=*/true).worst("interfaces"), FindingLevel::error);
  EXPECT_EQ(judge(facts, /*several_nodes=*/false).worst("interfaces"), FindingLevel::note);
}

TEST(JudgeNetwork, slow_and_unplugged_interfaces_are_named) {
  NetworkFacts facts = healthy_network();
  facts.interfaces[1].speed_mbit = 100;
  EXPECT_NE(judge(facts).text("interfaces").find("100 Mbit/s"), std::string::npos);
  facts.interfaces.push_back(
      {.name = "eth1", .up = true, .carrier = false, .addresses = {{ip("10.1.0.1"), 24}}});
  EXPECT_TRUE(std::ranges::any_of(judge(facts).all(), [](const Finding& each) {
    return each.level == FindingLevel::note && each.what.find("eth1") != std::string::npos;
  }));
  EXPECT_EQ(facts.outer_addresses().size(), 1u);  // neither loopback, link-local nor unplugged
}

TEST(JudgeNetwork, infiniband_ports_must_be_active_and_open) {
  NetworkFacts facts = healthy_network();
  facts.rdma_ports = {{.device = "mlx5_0", .port = 1, .state = "ACTIVE"},
                      {.device = "mlx5_1", .port = 1, .state = "DOWN", .link_layer = "InfiniBand"}};
  facts.rdma_can_be_opened = true;
  EXPECT_NE(judge(facts).text("infiniband").find("mlx5_1"), std::string::npos);
  facts.rdma_can_be_opened = false;
  EXPECT_EQ(judge(facts).worst("infiniband"), FindingLevel::error);
}

TEST(ReadNetwork, infiniband_ports_are_read_from_sysfs) {
  const testing::TemporaryFolder folder;
  const std::filesystem::path port = folder.path() / "class/infiniband/mlx5_0/ports/1";
  std::filesystem::create_directories(port);
  std::ofstream(port / "state") << "4: ACTIVE\n";
  std::ofstream(port / "rate") << "100 Gb/sec (4X EDR)\n";
  std::ofstream(port / "link_layer") << "InfiniBand\n";
  const auto ports = read_rdma_ports({.sys = folder.path()});
  ASSERT_EQ(ports.size(), 1u);
  EXPECT_EQ(ports[0].device, "mlx5_0");
  EXPECT_TRUE(ports[0].active());
  EXPECT_EQ(ports[0].rate, "100 Gb/sec (4X EDR)");
}

TEST(ReadNetwork, this_machine_has_loopback) {
  const NetworkFacts facts = read_network();
  ASSERT_NE(facts.interface("lo"), nullptr);
  EXPECT_TRUE(facts.interface("lo")->loopback);
}

TEST(SameNetwork, compares_as_many_bits_as_are_given) {
  EXPECT_TRUE(same_network(ip("10.0.1.1"), ip("10.0.2.1"), 16));
  EXPECT_FALSE(same_network(ip("10.0.1.1"), ip("10.0.2.1"), 24));
  EXPECT_TRUE(same_network(ip("10.0.0.1"), ip("10.0.0.2"), 30));
  EXPECT_FALSE(same_network(ip("10.0.0.1"), ip("fd00::1"), 0));
  EXPECT_TRUE(same_network(ip("fd00::1"), ip("fd00::2"), 64));
}

}  // namespace
}  // namespace lockstep
