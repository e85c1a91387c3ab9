#include "cluster/hosts.h"

#include <gtest/gtest.h>

#include "contains.h"
#include "lockstep/error.h"
#include "tests/support/refusal.h"

using lockstep::chosen_hosts;
using lockstep::Host;
using lockstep::hosts_of;
using lockstep::hosts_of_file;
using lockstep::hosts_of_nodefile;
using lockstep::InvalidArgument;
using lockstep::list_hosts;
using lockstep::testing::refusal;
using Hosts = std::vector<Host>;

TEST(Hosts, a_list_has_names_ranges_addresses_and_slots) {
  EXPECT_EQ(hosts_of("a,b:4,c[1-3],d[08-09]:2"),
            (Hosts{{"a"}, {"b", 4}, {"c1"}, {"c2"}, {"c3"}, {"d08", 2}, {"d09", 2}}));
  EXPECT_EQ(hosts_of("10.0.0.1:2, n2.site.org"), (Hosts{{"10.0.0.1", 2}, {"n2.site.org"}}));
  EXPECT_EQ(hosts_of("[fd00::1]:2,fd00::2"), (Hosts{{"fd00::1", 2}, {"fd00::2"}}));
}

TEST(Hosts, a_list_that_cannot_be_meant_is_refused_by_name) {
  for (const char* text :
       {"", "a,,b", "a:0", "a:x", "a:", "a[1-", "a b", "a;rm", "-oProxy=x", "a,a", "a[1-2],a2"}) {
    SCOPED_TRACE(text);
    EXPECT_TRUE(contains(refusal([&] { hosts_of(text); }), "--hosts")) << text;
  }
}

TEST(Hosts, a_hostfile_is_read_as_open_mpi_and_deepspeed_write_it) {
  EXPECT_EQ(hosts_of_file("# cluster\n"
                          "n1 slots=4\n"
                          "\n"
                          "n2\tslots=2 max_slots=8   # slow\n"
                          "n3:2\r\n"
                          "n4 gpus=0,2\n"
                          "g[1-2] slots=3 gpus=1,2,3\n"
                          "n5\n",
                          "f"),
            (Hosts{{"n1", 4},
                   {"n2", 2},
                   {"n3", 2},
                   {"n4", 2, {0, 2}},
                   {"g1", 3, {1, 2, 3}},
                   {"g2", 3, {1, 2, 3}},
                   {"n5"}}));
  EXPECT_EQ(hosts_of_file("n1\nn2\nn1\n", "f"), (Hosts{{"n1", 2}, {"n2"}}));
}

TEST(Hosts, a_bad_line_of_a_hostfile_is_named) {
  EXPECT_TRUE(contains(refusal([] { hosts_of_file("n1\nn2 slot=4\n", "f.txt"); }), "f.txt:2"));
  EXPECT_TRUE(contains(refusal([] { hosts_of_file("n1 gpus=0,0\n", "f"); }), "f:1: GPU 0"));
  EXPECT_TRUE(contains(refusal([] { hosts_of_file("n1 gpus=a\n", "f"); }), "f:1"));
  EXPECT_TRUE(contains(refusal([] { hosts_of_file("n1 gpus=0\nn1 gpus=1\n", "f"); }), "f:2"));
  EXPECT_TRUE(contains(refusal([] { hosts_of_file("# nobody\n", "f"); }), "names no machine"));
}

TEST(Hosts, lines_of_a_nodefile_are_slots_and_pbs_knows_machines_by_their_first) {
  EXPECT_EQ(hosts_of_nodefile("n7\nn7\nn3\nn7\nn3\n", "f"),
            (Hosts{{"n7", 3, {}, 0}, {"n3", 2, {}, 2}}));
}

TEST(Hosts, machines_and_gpus_are_included_and_excluded) {
  const Hosts all{{"n1", 4}, {"n2", 4}, {"n3"}};
  EXPECT_EQ(chosen_hosts(all, std::nullopt, std::nullopt), all);
  EXPECT_EQ(chosen_hosts(all, "n3@n1:0,2", std::nullopt), (Hosts{{"n1", 2, {0, 2}}, {"n3"}}));
  EXPECT_EQ(chosen_hosts(all, "n[1-2]", std::nullopt), (Hosts{{"n1", 4}, {"n2", 4}}));
  EXPECT_EQ(chosen_hosts(all, std::nullopt, "n1@n2:0,1"), (Hosts{{"n2", 2, {2, 3}}, {"n3"}}));
  EXPECT_EQ(chosen_hosts({{"n1", 2}, {"n2"}}, std::nullopt, "n1:0,1"), (Hosts{{"n2"}}));
}

TEST(Hosts, a_choice_that_makes_no_sense_is_refused) {
  const Hosts all{{"n1", 2}, {"n2"}};
  EXPECT_TRUE(contains(refusal([&] { chosen_hosts(all, "n9", std::nullopt); }),
                       "'n9', which is not among the machines: n1 and n2"));
  EXPECT_TRUE(contains(refusal([&] { chosen_hosts(all, "n1:5", std::nullopt); }), "GPU 5 of n1"));
  EXPECT_TRUE(contains(refusal([&] { chosen_hosts(all, std::nullopt, "n2:0"); }), "give it slots"));
  EXPECT_TRUE(contains(refusal([&] { chosen_hosts(all, std::nullopt, "n1@n2"); }), "no machine"));
}

TEST(Hosts, many_are_named_by_the_first_and_the_last) {
  EXPECT_EQ(list_hosts({{"a"}}), "a");
  EXPECT_EQ(list_hosts({{"a"}, {"b"}, {"c"}}), "a, b and c");
  EXPECT_EQ(list_hosts(hosts_of("n[1-64]")), "n1, n2, n3, n4, n5, n6, n7, n8, ..., n64");
}
