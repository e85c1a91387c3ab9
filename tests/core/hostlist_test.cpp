#include "core/hostlist.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::expand_hostlist;
using lockstep::InvalidArgument;
using lockstep::tasks_on_node;

namespace {

using Hosts = std::vector<std::string>;

}  // namespace

TEST(Hostlist, plain_names_stay_in_their_order) {
  EXPECT_EQ(expand_hostlist("n2"), (Hosts{"n2"}));
  EXPECT_EQ(expand_hostlist("n2,gpu-5.example.org,n1"), (Hosts{"n2", "gpu-5.example.org", "n1"}));
}

TEST(Hostlist, ranges_keep_the_zeros_of_their_first_number) {
  EXPECT_EQ(expand_hostlist("n[1-3,07-10],gpu5"),
            (Hosts{"n1", "n2", "n3", "n07", "n08", "n09", "n10", "gpu5"}));
  EXPECT_EQ(expand_hostlist("n[8-11]"), (Hosts{"n8", "n9", "n10", "n11"}));
  EXPECT_EQ(expand_hostlist("n[098-101]"), (Hosts{"n098", "n099", "n100", "n101"}));
}

TEST(Hostlist, brackets_multiply_and_the_last_one_counts_fastest) {
  EXPECT_EQ(expand_hostlist("a[1-2]b[3-4]"), (Hosts{"a1b3", "a1b4", "a2b3", "a2b4"}));
  EXPECT_EQ(expand_hostlist("rack[1-2]-ib"), (Hosts{"rack1-ib", "rack2-ib"}));
}

TEST(Hostlist, text_that_is_no_list_is_refused) {
  for (const char* text : {"",          ",",
                           "n1,",       ",n1",
                           "n[",        "n]",
                           "n[]",       "n[1",
                           "n1]",       "n[1-]",
                           "n[-1]",     "n[3-1]",
                           "n[a]",      "n[1,]",
                           "n[[1]]",    "n[1-2-3]",
                           "n[1 2]",    "n 1",
                           "n1;reboot", "-oProxyCommand",
                           "n[0x1]",    "n[18446744073709551616]"}) {
    EXPECT_THROW(expand_hostlist(text), InvalidArgument) << "accepted: '" << text << "'";
  }
}

TEST(Hostlist, the_refusal_names_the_text_and_the_rule) {
  try {
    expand_hostlist("n[1-x]");
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "the host list 'n[1-x]' cannot be read: '1-x' is not a range of numbers");
  }
}

TEST(Hostlist, as_many_hosts_as_slurm_can_have_are_accepted_and_not_one_more) {
  EXPECT_EQ(expand_hostlist("n[1-65536]").size(), 65536u);
  EXPECT_EQ(expand_hostlist("a[0-255]b[0-255]").size(), 65536u);
  EXPECT_THROW(expand_hostlist("n[1-65537]"), InvalidArgument);
  EXPECT_THROW(expand_hostlist("n[1-65536],m"), InvalidArgument);
  EXPECT_THROW(expand_hostlist("a[0-255]b[0-256]"), InvalidArgument);
}

TEST(Hostlist, lists_that_would_fill_memory_are_refused) {
  EXPECT_THROW(expand_hostlist("n[0-18446744073709551615]"), InvalidArgument);
  EXPECT_THROW(expand_hostlist("a[1-9999]b[1-9999]c[1-9999]d[1-9999]"), InvalidArgument);
  EXPECT_THROW(expand_hostlist(std::string(300, 'a') + "[1-65536]"), InvalidArgument);
  EXPECT_THROW(expand_hostlist("n[" + std::string(1000, '0') + "-9]"), InvalidArgument);
  EXPECT_THROW(expand_hostlist(std::string((1 << 20) + 1, ',')), InvalidArgument);
}

TEST(TasksOnNode, entries_count_for_as_many_nodes_as_they_say) {
  EXPECT_EQ(tasks_on_node("4", 0), 4);
  EXPECT_EQ(tasks_on_node("2(x3),1", 0), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 3), 1);
  EXPECT_EQ(tasks_on_node("1,2(x2147483647),3", 2147483647), 2);
}

TEST(TasksOnNode, a_node_beyond_the_end_is_refused) {
  EXPECT_THROW(tasks_on_node("2(x3),1", 4), InvalidArgument);
}

TEST(TasksOnNode, malformed_text_is_refused_wherever_it_stands) {
  for (const char* text : {"", "2,", ",2", "x", "0", "-1", "2(x", "2(x)", "2(x0)", "2(x3", "2(3)",
                           "2(x3)1", "2,y", "99999999999"}) {
    EXPECT_THROW(tasks_on_node(text, 0), InvalidArgument) << "accepted: '" << text << "'";
  }
}
