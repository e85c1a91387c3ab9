#include "cluster/head_place.h"

#include <algorithm>

#include <gtest/gtest.h>

using lockstep::find_head_place;
using lockstep::HeadPlace;
using lockstep::HeadPlan;
using lockstep::LocalMachine;
using lockstep::StarterKind;
using Words = std::vector<std::string>;

namespace {

lockstep::IpAddress address(const char* text) {
  return *lockstep::IpAddress::parse(text);
}

const LocalMachine kLogin{.name = "login1",
                          .addresses = {{address("127.0.0.1"), "lo"},
                                        {address("10.1.0.7"), "eth0"},
                                        {address("fe80::7"), "eth0"},
                                        {address("10.9.0.7"), "eth1", false},
                                        {address("fd00::7"), "eth0"}}};

// Nodes have addresses of nobody, so that no resolver is asked.
HeadPlan place_plan(StarterKind kind, const std::string& listen_host = "") {
  HeadPlan result{.options = {},
                  .environment = lockstep::Environment(lockstep::Environment::Variables{}),
                  .coordinator = {},
                  .secret = "",
                  .listen_host = listen_host,
                  .nodes = {}};
  for (const char* host : {"192.0.2.201", "192.0.2.202"}) {
    result.nodes.push_back({.host = {.name = host}, .brief = {}, .starter = {.kind = kind}});
  }
  return result;
}

}  // namespace

TEST(HeadPlace, agents_are_told_every_address_that_may_reach_the_head) {
  const HeadPlace place = find_head_place(place_plan(StarterKind::srun, "192.0.2.77"), kLogin);
  ASSERT_EQ(place.told.size(), 2u);
  const Words& hosts = place.told[1];
  EXPECT_EQ(hosts.front(), "192.0.2.77") << "as the user said, although it is not this machine's";
  EXPECT_EQ(hosts.back(), "login1");
  for (const char* here : {"10.1.0.7", "fd00::7"}) {
    EXPECT_NE(std::ranges::find(hosts, here), hosts.end()) << here;
  }
  for (const char* useless : {"127.0.0.1", "fe80::7", "10.9.0.7"}) {
    EXPECT_EQ(std::ranges::find(hosts, useless), hosts.end()) << useless;
  }
}

TEST(HeadPlace, it_listens_at_what_agents_are_told_and_nowhere_else) {
  EXPECT_EQ(find_head_place(place_plan(StarterKind::srun), kLogin).own,
            (Words{"10.1.0.7", "fd00::7"}));
}

TEST(HeadPlace, an_address_that_the_user_names_is_the_only_one) {
  for (const StarterKind kind : {StarterKind::ssh, StarterKind::local}) {
    const HeadPlace place = find_head_place(place_plan(kind, "fd00::7"), kLogin);
    EXPECT_EQ(place.own, (Words{"fd00::7"}));
    EXPECT_EQ(place.told, (std::vector<Words>{{"fd00::7"}, {"fd00::7"}}));
  }
}

TEST(HeadPlace, agents_on_this_machine_need_loopback_only) {
  const HeadPlace place = find_head_place(place_plan(StarterKind::local), kLogin);
  EXPECT_EQ(place.own, (Words{"127.0.0.1"}));
  EXPECT_EQ(place.told[0], (Words{"127.0.0.1"}));
}

TEST(HeadPlace, a_machine_with_nothing_but_loopback_listens_there) {
  const LocalMachine alone{.name = "alone", .addresses = {{address("127.0.0.1"), "lo"}}};
  EXPECT_EQ(find_head_place(place_plan(StarterKind::srun), alone).own, (Words{"127.0.0.1"}));
}
