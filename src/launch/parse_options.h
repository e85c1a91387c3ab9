#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/endpoint.h"
#include "launch/options.h"
#include "lockstep/environment.h"

namespace lockstep {

/// What the arguments of `lockstep run` (without those two words) and the environment ask for. The
/// command line comes before variables, variables before defaults. With --help, only `help` is set.
///
/// Reads no file and asks no system. Throws InvalidArgument, one line that names the option or
/// variable, its value, the rule and the cure.
RunOptions parse_run_options(const std::vector<std::string>& arguments,
                             const Environment& environment);

/// The same for `lockstep launch`, which has --use-env too.
RunOptions parse_launch_options(const std::vector<std::string>& arguments,
                                const Environment& environment);

/// This node's place in a job whose nodes were found out.
struct NodePlacement {
  int min_nodes = 1;
  int max_nodes = 1;
  int node_rank = 0;
  Endpoint endpoint;                   // where the nodes meet
  bool hosts = false;                  // this node hosts the coordinator
  bool headed = false;                 // a process without workers does
  std::optional<std::string> run_id;   // unset: as the user said
  std::optional<std::string> workers;  // likewise, as --nproc-per-node takes it
};

/// Settles what was left open in options that seek their nodes. Nodes that meet through etcd still
/// do.
void place_node(RunOptions& options, const NodePlacement& placement);

}  // namespace lockstep
