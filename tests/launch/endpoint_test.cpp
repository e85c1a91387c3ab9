#include "launch/endpoint.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::Endpoint;
using lockstep::InvalidArgument;
using lockstep::parse_endpoint;
using lockstep::parse_host;

namespace {

std::string error_of(const std::string& text) {
  try {
    parse_endpoint(text, 29400);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST(Endpoint, host_and_port_are_read_in_every_form) {
  const struct {
    const char* text;
    Endpoint expected;
  } cases[] = {
      {"", {"localhost", 29400}},
      {"  ", {"localhost", 29400}},
      {"node1", {"node1", 29400}},
      {"node1:1234", {"node1", 1234}},
      {" node1:1234 ", {"node1", 1234}},
      {"localhost:0", {"localhost", 0}},
      {"10.0.0.1:65535", {"10.0.0.1", 65535}},
      {"a-b_c.example.com", {"a-b_c.example.com", 29400}},
      {"[::1]", {"::1", 29400}},
      {"[2001:db8::5]:7", {"2001:db8::5", 7}},
      {"[fe80::1%eth0]:7", {"fe80::1%eth0", 7}},
  };
  for (const auto& each : cases) {
    EXPECT_EQ(parse_endpoint(each.text, 29400), each.expected) << each.text;
  }
}

TEST(Endpoint, what_cannot_be_one_is_refused_with_the_reason) {
  const struct {
    const char* text;
    const char* reason;
  } cases[] = {
      {"node1:", "its port '' must be a number from 0 to 65535"},
      {"node1:65536", "its port '65536' must be a number"},
      {"node1:-1", "its port '-1' must be a number"},
      {"node1:12a", "its port '12a' must be a number"},
      {":29400", "the host before the port is missing"},
      {"fe80::1:29400", "write [ADDRESS]:PORT"},
      {"[::1", "the bracket is not closed"},
      {"[node1]:5", "'node1' in the brackets is no IPv6 address"},
      {"[10.0.0.1]:5", "'10.0.0.1' in the brackets is no IPv6 address"},
      {"[::1]5", "after the bracket only ':' and a port may follow"},
      {"tcp//node1", "neither a host's name nor an address"},
      {"a b:5", "neither a host's name nor an address"},
  };
  for (const auto& each : cases) {
    const std::string error = error_of(each.text);
    EXPECT_NE(error.find(each.reason), std::string::npos) << each.text << ": " << error;
    EXPECT_EQ(error.find("--rdzv-endpoint is '"), 0u) << error;
  }
}

TEST(Endpoint, its_text_can_be_read_again) {
  for (const Endpoint& endpoint : {Endpoint{"node1", 5}, Endpoint{"::1", 0}}) {
    EXPECT_EQ(parse_endpoint(endpoint.to_string(), 1), endpoint);
  }
}

TEST(Endpoint, a_host_alone_may_have_brackets_and_no_port) {
  EXPECT_EQ(parse_host("node1", "--master-addr"), "node1");
  EXPECT_EQ(parse_host("[::1]", "--master-addr"), "::1");
  EXPECT_EQ(parse_host("::1", "--master-addr"), "::1");
  for (const char* text : {"", "node1:5", "[node1]", "a b"}) {
    EXPECT_THROW(parse_host(text, "--master-addr"), InvalidArgument) << text;
  }
}
