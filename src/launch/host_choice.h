#pragma once

#include <functional>
#include <string>

#include "launch/endpoint.h"
#include "launch/options.h"

namespace lockstep {

/// Whether this node runs the job's coordinator, and where that listens.
struct HostChoice {
  Endpoint endpoint;  // port 0: any free one, which only a node that hosts may get
  bool hosts = false;
  bool guessed = false;  // by address. If the port is then taken, join: several agents may run here
  std::string reason;    // "--node-rank is 0": for what is said when nobody is found
};

/// Decides by what the user said; `is_this_machine` is asked about the endpoint's host where that
/// decides.
///
/// --standalone, and one node without a word about a rendezvous: loopback, a free port. static:
/// node rank 0 hosts at --rdzv-endpoint, else --master-addr:--master-port; the port is 29500 where
/// none is given. c10d: --rdzv-conf is_host, else the node that the endpoint names; port 29400.
///
/// etcd: no node is the host from the start; the endpoint is the first of etcd's.
///
/// Throws InvalidArgument for other back ends and for endpoints that several nodes cannot share.
HostChoice choose_host(const RunOptions& options,
                       const std::function<bool(const std::string&)>& is_this_machine);

}  // namespace lockstep
