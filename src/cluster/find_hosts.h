#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/allocation.h"
#include "cluster/hosts.h"
#include "launch/options.h"
#include "lockstep/environment.h"

namespace lockstep {

/// Where the nodes of a job are.
struct FoundHosts {
  std::optional<Allocation> allocation;  // that this process runs in
  // Where launchers are to be started. None: one per node is running already, and this is the one
  // at the allocation's place.
  std::vector<Host> hosts;
  std::string source;  // by what they were found, for people

  bool in_place() const { return hosts.empty(); }
};

/// The machines that --hosts, --hostfile or --nnodes auto mean, of which options have one, without
/// those that --include and --exclude leave out. Throws InvalidArgument, with the cure, where
/// nothing says which they are.
FoundHosts find_hosts(const RunOptions& options, const Environment& environment);

}  // namespace lockstep
