#include "launch/host_choice.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>

#include "launch/ip_address.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr int kStaticPort = 29500;
constexpr int kC10dPort = 29400;

// torchrun's words.
std::optional<bool> parse_bool(std::string word) {
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  constexpr std::array<std::string_view, 5> kTrue = {"1", "true", "t", "yes", "y"};
  constexpr std::array<std::string_view, 5> kFalse = {"0", "false", "f", "no", "n"};
  if (std::find(kTrue.begin(), kTrue.end(), word) != kTrue.end()) {
    return true;
  }
  if (std::find(kFalse.begin(), kFalse.end(), word) != kFalse.end()) {
    return false;
  }
  return std::nullopt;
}

std::optional<bool> is_host_option(const RunOptions& options) {
  const auto found = options.rdzv_conf.find("is_host");
  if (found == options.rdzv_conf.end()) {
    return std::nullopt;
  }
  const auto value = parse_bool(found->second);
  if (!value) {
    throw InvalidArgument(
        concat("--rdzv-conf: is_host is '", found->second, "'; it must be true or false"));
  }
  return value;
}

// torchrun gives a single node a port of its own when nothing was said, so that two jobs on one
// machine do not meet at 29500.
bool alone(const RunOptions& options) {
  const bool nothing_said = options.rdzv_backend == "static" && options.rdzv_endpoint.empty() &&
                            !options.master_port && options.max_nodes == 1;
  return options.standalone || nothing_said;
}

void check_shareable(const RunOptions& options, const Endpoint& endpoint) {
  if (options.max_nodes == 1) {
    return;
  }
  if (endpoint.port == 0) {
    throw InvalidArgument(concat("the endpoint is '", endpoint.to_string(), "' for up to ",
                                 options.max_nodes,
                                 " nodes; the others cannot know which port 0 becomes: give one"));
  }
  const auto address = IpAddress::parse(endpoint.host);
  if (address && address->is_unspecified()) {
    throw InvalidArgument(concat("the endpoint is '", endpoint.to_string(), "' for up to ",
                                 options.max_nodes,
                                 " nodes; each would take that for itself: give an address of "
                                 "the node that hosts"));
  }
}

HostChoice choose_alone(const RunOptions& options) {
  if (options.min_nodes > 1) {
    throw InvalidArgument(concat("--standalone is given with --nnodes ", options.min_nodes, ":",
                                 options.max_nodes, "; a standalone job has one node"));
  }
  return {.endpoint = {.host = "127.0.0.1", .port = 0},
          .hosts = true,
          .guessed = false,
          .reason = options.standalone ? "--standalone is given" : "the job has one node"};
}

HostChoice choose_static(const RunOptions& options) {
  if (options.rdzv_conf.contains("is_host")) {
    throw InvalidArgument(
        "--rdzv-conf: is_host is given for --rdzv-backend static, where the node with "
        "--node-rank 0 hosts; leave it out, or use c10d");
  }
  HostChoice choice;
  choice.endpoint =
      options.rdzv_endpoint.empty()
          ? Endpoint{.host = parse_host(options.master_addr, "--master-addr"),
                     .port = options.master_port.value_or(kStaticPort)}
          : parse_endpoint(options.rdzv_endpoint, options.master_port.value_or(kStaticPort));
  const int node_rank = options.node_rank.value_or(0);
  choice.hosts = node_rank == 0;
  choice.reason = concat("--node-rank is ", node_rank);
  return choice;
}

HostChoice choose_c10d(const RunOptions& options,
                       const std::function<bool(const std::string&)>& is_this_machine) {
  // There the endpoint would be a path.
  const auto store = options.rdzv_conf.find("store_type");
  if (store != options.rdzv_conf.end() && store->second != "tcp") {
    throw InvalidArgument(concat("--rdzv-conf: store_type is '", store->second,
                                 "', which is not supported; leave it out, or say tcp"));
  }
  HostChoice choice{.endpoint = parse_endpoint(options.rdzv_endpoint, kC10dPort)};
  if (const auto said = is_host_option(options)) {
    choice.hosts = *said;
    choice.reason = concat("--rdzv-conf says is_host=", options.rdzv_conf.at("is_host"));
    return choice;
  }
  choice.hosts = is_this_machine(choice.endpoint.host);
  choice.guessed = true;
  choice.reason = concat("'", choice.endpoint.host, "' is ", choice.hosts ? "" : "not ",
                         "an address or name of this node");
  return choice;
}

HostChoice choose_etcd(const RunOptions& options) {
  return {.endpoint = parse_etcd_endpoints(options.rdzv_endpoint).front(),
          .hosts = false,
          .guessed = false,
          .reason = "etcd names the node that hosts"};
}

}  // namespace

HostChoice choose_host(const RunOptions& options,
                       const std::function<bool(const std::string&)>& is_this_machine) {
  if (alone(options)) {
    return choose_alone(options);
  }
  HostChoice choice;
  if (options.rdzv_backend == "static") {
    choice = choose_static(options);
  } else if (options.rdzv_backend == "c10d") {
    choice = choose_c10d(options, is_this_machine);
  } else if (options.rdzv_backend == "etcd") {
    return choose_etcd(options);
  } else {
    throw InvalidArgument(concat("--rdzv-backend is '", options.rdzv_backend,
                                 "', which is not supported; use c10d, which needs no server of "
                                 "its own, etcd, or static"));
  }
  check_shareable(options, choice.endpoint);
  if (!choice.hosts && choice.endpoint.port == 0) {
    throw InvalidArgument(concat("the endpoint is '", choice.endpoint.to_string(),
                                 "', and another node hosts it; its port must be known here"));
  }
  return choice;
}

}  // namespace lockstep
