#include "launch/host_choice.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::choose_host;
using lockstep::Endpoint;
using lockstep::HostChoice;
using lockstep::InvalidArgument;
using lockstep::RunOptions;

namespace {

// This node is "me".
bool is_me(const std::string& host) {
  return host == "me" || host == "localhost";
}

RunOptions static_nodes(int nodes, std::optional<int> node_rank, std::string endpoint = "") {
  RunOptions options;
  options.min_nodes = options.max_nodes = nodes;
  options.node_rank = node_rank;
  options.rdzv_endpoint = std::move(endpoint);
  options.master_addr = "master";
  return options;
}

RunOptions c10d_nodes(int nodes, std::string endpoint, std::string is_host = "") {
  RunOptions options;
  options.min_nodes = options.max_nodes = nodes;
  options.rdzv_backend = "c10d";
  options.rdzv_endpoint = std::move(endpoint);
  if (!is_host.empty()) {
    options.rdzv_conf["is_host"] = std::move(is_host);
  }
  return options;
}

RunOptions with_port(RunOptions options, int master_port) {
  options.master_port = master_port;
  return options;
}

RunOptions standalone(RunOptions options) {
  options.standalone = true;
  return options;
}

std::string error_of(const RunOptions& options) {
  try {
    choose_host(options, is_me);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST(HostChoice, follows_what_the_user_said) {
  const struct {
    const char* title;
    RunOptions options;
    Endpoint endpoint;
    bool hosts;
    bool guessed;
  } cases[] = {
      {"nothing said", RunOptions(), {"127.0.0.1", 0}, true, false},
      {"standalone beats the rest",
       standalone(c10d_nodes(1, "other:5", "false")),
       {"127.0.0.1", 0},
       true,
       false},
      {"static, one node, a port", with_port(RunOptions(), 7), {"127.0.0.1", 7}, true, false},
      {"static, rank 0", static_nodes(2, 0), {"master", 29500}, true, false},
      {"static, no rank", static_nodes(2, std::nullopt), {"master", 29500}, true, false},
      {"static, rank 1", static_nodes(2, 1), {"master", 29500}, false, false},
      {"static, port", with_port(static_nodes(2, 1), 7), {"master", 7}, false, false},
      {"static, endpoint", static_nodes(2, 1, "end:8"), {"end", 8}, false, false},
      {"static, endpoint without port", static_nodes(2, 0, "end"), {"end", 29500}, true, false},
      {"static, rank decides and not the address",
       static_nodes(2, 1, "me:8"),
       {"me", 8},
       false,
       false},
      {"c10d, no endpoint", c10d_nodes(1, ""), {"localhost", 29400}, true, true},
      {"c10d, this node", c10d_nodes(4, "me:8"), {"me", 8}, true, true},
      {"c10d, default port", c10d_nodes(4, "me"), {"me", 29400}, true, true},
      {"c10d, another node", c10d_nodes(4, "other"), {"other", 29400}, false, true},
      {"c10d, told to host", c10d_nodes(4, "other", "Yes"), {"other", 29400}, true, false},
      {"c10d, told not to", c10d_nodes(4, "me", "0"), {"me", 29400}, false, false},
      {"c10d, free port", c10d_nodes(1, "me:0"), {"me", 0}, true, true},
  };
  for (const auto& each : cases) {
    const HostChoice choice = choose_host(each.options, is_me);
    EXPECT_EQ(choice.endpoint, each.endpoint) << each.title;
    EXPECT_EQ(choice.hosts, each.hosts) << each.title;
    EXPECT_EQ(choice.guessed, each.guessed) << each.title;
    EXPECT_NE(choice.reason, "") << each.title;
  }
}

TEST(HostChoice, an_ipv6_master_address_may_have_brackets) {
  RunOptions options = static_nodes(2, 1);
  options.master_addr = "[2001:db8::1]";
  EXPECT_EQ(choose_host(options, is_me).endpoint, (Endpoint{"2001:db8::1", 29500}));
}

TEST(HostChoice, etcd_may_have_several_servers) {
  EXPECT_EQ(lockstep::parse_etcd_endpoints("one,two:5,[::1]:6"),
            (std::vector<Endpoint>{{"one", 2379}, {"two", 5}, {"::1", 6}}));
  RunOptions options = c10d_nodes(2, "me,two:5");
  options.rdzv_backend = "etcd";
  EXPECT_FALSE(choose_host(options, is_me).hosts);
  EXPECT_EQ(choose_host(options, is_me).endpoint, (Endpoint{"me", 2379}));
}

TEST(HostChoice, says_why) {
  EXPECT_EQ(choose_host(static_nodes(2, 1), is_me).reason, "--node-rank is 1");
  EXPECT_EQ(choose_host(c10d_nodes(2, "other"), is_me).reason,
            "'other' is not an address or name of this node");
  EXPECT_EQ(choose_host(c10d_nodes(2, "other", "t"), is_me).reason, "--rdzv-conf says is_host=t");
}

TEST(HostChoice, what_cannot_work_is_refused_by_name) {
  RunOptions zookeeper = c10d_nodes(2, "server:2379");
  zookeeper.rdzv_backend = "zookeeper";
  RunOptions etcd = c10d_nodes(2, "one,two:0");
  etcd.rdzv_backend = "etcd";
  RunOptions file_store = c10d_nodes(2, "/shared/file");
  file_store.rdzv_conf["store_type"] = "file";
  RunOptions static_is_host = static_nodes(2, 0);
  static_is_host.rdzv_conf["is_host"] = "true";
  const struct {
    RunOptions options;
    const char* reason;
  } cases[] = {
      {zookeeper, "--rdzv-backend is 'zookeeper', which is not supported"},
      {etcd, "where a port is 0"},
      {file_store, "store_type is 'file', which is not supported"},
      {static_is_host, "is_host is given for --rdzv-backend static"},
      {c10d_nodes(2, "me", "maybe"), "is_host is 'maybe'; it must be true or false"},
      {c10d_nodes(2, "me:0"), "cannot know which port 0 becomes"},
      {static_nodes(2, 0, "me:0"), "cannot know which port 0 becomes"},
      {c10d_nodes(2, "0.0.0.0:5"), "give an address of the node that hosts"},
      {c10d_nodes(1, "other:0"), "its port must be known here"},
      {standalone(c10d_nodes(2, "")), "--standalone is given with --nnodes 2:2"},
      {c10d_nodes(2, "me:x"), "its port 'x' must be a number"},
  };
  for (const auto& each : cases) {
    const std::string error = error_of(each.options);
    EXPECT_NE(error.find(each.reason), std::string::npos) << each.reason << ": " << error;
  }
}
