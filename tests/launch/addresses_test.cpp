#include "launch/addresses.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::addresses_to_listen_at;
using lockstep::advertised_address;
using lockstep::AdvertiseOptions;
using lockstep::InvalidArgument;
using lockstep::IpAddress;
using lockstep::is_this_machine;
using lockstep::LocalMachine;
using lockstep::resolve;

namespace {

IpAddress ip(const std::string& text) {
  return IpAddress::parse(text).value();
}

// A machine with a second network, which its name does not lead to.
LocalMachine two_networks() {
  return {.name = "Node7",
          .addresses = {{.address = ip("127.0.0.1"), .interface = "lo"},
                        {.address = ip("203.0.113.7"), .interface = "eth0"},
                        {.address = ip("10.99.0.7"), .interface = "ib0"},
                        {.address = ip("fe80::7"), .interface = "eth0"}}};
}

}  // namespace

TEST(IpAddress, an_ipv4_address_in_ipv6_form_is_the_ipv4_address) {
  EXPECT_EQ(ip("::ffff:10.0.0.1"), ip("10.0.0.1"));
  EXPECT_EQ(ip("::ffff:10.0.0.1").to_string(), "10.0.0.1");
  EXPECT_EQ(ip("::ffff:10.0.0.1").family(), AF_INET);

  sockaddr_in6 mapped = {};
  mapped.sin6_family = AF_INET6;
  ASSERT_EQ(::inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr), 1);
  const auto peer = IpAddress::from(reinterpret_cast<const sockaddr*>(&mapped));
  ASSERT_TRUE(peer);
  EXPECT_TRUE(peer->is_loopback());
}

TEST(IpAddress, knows_what_reaches_other_machines) {
  EXPECT_TRUE(ip("127.1.2.3").is_loopback());
  EXPECT_TRUE(ip("::1").is_loopback());
  EXPECT_FALSE(ip("128.0.0.1").is_loopback());
  EXPECT_TRUE(ip("0.0.0.0").is_unspecified());
  EXPECT_TRUE(ip("::").is_unspecified());
  EXPECT_FALSE(ip("::1").is_unspecified());
  EXPECT_TRUE(ip("169.254.1.1").is_link_local());
  EXPECT_TRUE(ip("fe80::1%eth0").is_link_local());
  EXPECT_FALSE(ip("fd00::1").is_link_local());
}

TEST(IpAddress, text_that_is_no_address_is_none) {
  for (const char* text : {"", "localhost", "10.0.0", "10.0.0.256", "[::1]", "::1:2:3:4:5:6:7:8"}) {
    EXPECT_EQ(IpAddress::parse(text), std::nullopt) << text;
  }
}

TEST(IpAddress, a_socket_of_another_family_has_none) {
  sockaddr local = {};
  local.sa_family = AF_UNIX;
  EXPECT_EQ(IpAddress::from(&local), std::nullopt);
  EXPECT_EQ(IpAddress::from(nullptr), std::nullopt);
}

TEST(Resolve, an_address_is_itself_and_an_unknown_name_has_a_reason) {
  EXPECT_EQ(resolve("10.1.2.3"), std::vector{ip("10.1.2.3")});
  std::string reason;
  EXPECT_TRUE(resolve("no_such_host.invalid", &reason).empty());
  EXPECT_NE(reason, "");
}

TEST(LocalMachine, the_current_one_has_a_name_and_loopback) {
  const LocalMachine machine = LocalMachine::current();
  EXPECT_NE(machine.name, "");
  EXPECT_TRUE(machine.has(ip("127.0.0.1")));
  EXPECT_TRUE(machine.interface_of(ip("127.0.0.1")).has_value());
  EXPECT_FALSE(machine.has(ip("240.1.2.3")));
}

TEST(IsThisMachine, every_address_of_every_interface_counts) {
  const LocalMachine machine = two_networks();
  for (const char* host : {"localhost", "LOCALHOST", "127.0.0.1", "127.3.3.3", "::1", "node7",
                           "Node7", "203.0.113.7", "10.99.0.7", "::ffff:10.99.0.7", "0.0.0.0"}) {
    EXPECT_TRUE(is_this_machine(host, machine)) << host;
  }
  for (const char* host : {"203.0.113.8", "node8.invalid", "10.99.0.70", "2001:db8::7"}) {
    EXPECT_FALSE(is_this_machine(host, machine)) << host;
  }
}

TEST(IsThisMachine, the_real_name_and_addresses_of_this_machine_count) {
  const LocalMachine machine = LocalMachine::current();
  EXPECT_TRUE(is_this_machine(machine.name));
  for (const auto& each : machine.addresses) {
    EXPECT_TRUE(is_this_machine(each.address.to_string())) << each.address.to_string();
  }
}

TEST(LocalMachine, names_the_interface_of_an_address) {
  EXPECT_EQ(two_networks().interface_of(ip("10.99.0.7")), "ib0");
  EXPECT_EQ(two_networks().interface_of(ip("10.99.0.8")), std::nullopt);
}

TEST(AdvertisedAddress, one_node_uses_loopback_whatever_its_name) {
  EXPECT_EQ(advertised_address({.max_nodes = 1}, two_networks()), "127.0.0.1");
}

TEST(AdvertisedAddress, local_addr_is_honoured_on_one_node_and_on_several) {
  AdvertiseOptions options{.max_nodes = 1, .local_addr = "10.99.0.7"};
  EXPECT_EQ(advertised_address(options, two_networks()), "10.99.0.7");
  options.max_nodes = 4;
  options.coordinator = {.host = "203.0.113.1", .port = 29400};
  EXPECT_EQ(advertised_address(options, two_networks()), "10.99.0.7");
  options.local_addr = "[2001:db8::7]";
  LocalMachine machine = two_networks();
  machine.addresses.push_back({.address = *IpAddress::parse("2001:db8::7"), .interface = "eth0"});
  EXPECT_EQ(advertised_address(options, machine), "2001:db8::7");
}

TEST(AdvertisedAddress, a_local_addr_that_others_cannot_use_is_refused) {
  const auto refused = [](const std::string& local_addr) {
    return advertised_address({.max_nodes = 2,
                               .local_addr = local_addr,
                               .coordinator = {.host = "203.0.113.1", .port = 29400}},
                              two_networks());
  };
  EXPECT_THROW(refused("0.0.0.0"), InvalidArgument);
  EXPECT_THROW(refused("no_such_host.invalid"), InvalidArgument);
  EXPECT_THROW(refused("10.0.0.1:29400"), InvalidArgument);
  EXPECT_THROW(refused(""), InvalidArgument);
  EXPECT_THROW(refused("10.99.0.8"), InvalidArgument);  // another machine's
}

TEST(AdvertisedAddress, several_agents_on_one_machine_may_all_use_loopback) {
  AdvertiseOptions options{.max_nodes = 2, .coordinator = {.host = "localhost", .port = 29400}};
  EXPECT_EQ(advertised_address(options, two_networks()), "127.0.0.1");
  options.local_addr = "127.0.0.2";
  EXPECT_EQ(advertised_address(options, two_networks()), "127.0.0.2");
}

TEST(AdvertisedAddress, the_way_to_the_coordinator_decides) {
  // Towards an address of its own a machine sends from that address, so this is known anywhere.
  const LocalMachine machine = LocalMachine::current();
  for (const auto& each : machine.addresses) {
    if (!each.up || each.address.is_loopback() || each.address.is_link_local()) {
      continue;
    }
    const std::string address = each.address.to_string();
    EXPECT_EQ(advertised_address({.max_nodes = 2, .coordinator = {.host = address, .port = 29400}},
                                 machine),
              address);
  }
}

TEST(AdvertisedAddress, a_coordinator_that_is_not_known_yet_leaves_the_main_address) {
  LocalMachine machine = two_networks();
  const std::string address = advertised_address(
      {.max_nodes = 2, .coordinator = {.host = "later.invalid", .port = 29400}}, machine);
  // The route chooses if it leads to an address that the machine has; else the first usable one.
  EXPECT_EQ(address, "203.0.113.7");
  machine.addresses[1].up = false;
  EXPECT_EQ(advertised_address(
                {.max_nodes = 2, .coordinator = {.host = "later.invalid", .port = 29400}}, machine),
            "10.99.0.7");
}

TEST(AdvertisedAddress, a_machine_without_a_network_says_so) {
  LocalMachine machine{.name = "island",
                       .addresses = {{.address = ip("127.0.0.1"), .interface = "lo"},
                                     {.address = ip("fe80::1"), .interface = "eth0"}}};
  try {
    advertised_address({.max_nodes = 2, .coordinator = {.host = "later.invalid", .port = 29400}},
                       machine);
    FAIL() << "an address was found";
  } catch (const lockstep::SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("'island'"), std::string::npos) << error.what();
  }
}

TEST(AddressesToListenAt, those_of_the_name_that_the_machine_has) {
  const std::vector<IpAddress> known{ip("10.99.0.7"), ip("192.0.2.1"), ip("fe80::7")};
  EXPECT_EQ(addresses_to_listen_at("node7", known, two_networks()),
            std::vector<std::string>{"10.99.0.7"});
}

TEST(AddressesToListenAt, loopback_is_enough_where_nobody_else_is_meant) {
  EXPECT_EQ(addresses_to_listen_at("localhost", {ip("::1"), ip("127.0.0.1")}, two_networks()),
            std::vector<std::string>{"127.0.0.1"});
  EXPECT_EQ(addresses_to_listen_at("127.0.0.1", {ip("127.0.0.1")}, two_networks()),
            std::vector<std::string>{"127.0.0.1"});
  const LocalMachine lone{.name = "n",
                          .addresses = {{.address = ip("127.0.0.1"), .interface = "lo"}}};
  EXPECT_EQ(addresses_to_listen_at("n", {ip("127.0.1.1")}, lone),
            std::vector<std::string>{"127.0.1.1"});
}

TEST(AddressesToListenAt, everywhere_where_others_know_the_name_otherwise) {
  EXPECT_TRUE(addresses_to_listen_at("node7", {ip("127.0.1.1")}, two_networks()).empty());
  EXPECT_TRUE(addresses_to_listen_at("public", {ip("192.0.2.1")}, two_networks()).empty());
  EXPECT_TRUE(addresses_to_listen_at("node7", {}, two_networks()).empty());
  EXPECT_TRUE(addresses_to_listen_at("0.0.0.0", {ip("0.0.0.0")}, two_networks()).empty());
}
