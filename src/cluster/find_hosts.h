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

/// Where the launchers of an allocation meet that each have their place; std::nullopt: nothing says
/// it. A node of Slurm that no name service knows is found by Slurm's own address for it. May wait
/// for DNS.
std::optional<Endpoint> meeting_endpoint(const Allocation& allocation);

/// What is to be said about options for starting launchers where they run already: nothing comes of
/// them. Throws InvalidArgument for those without which other machines would take part.
std::vector<std::string> notices_in_place(const RunOptions& options);

}  // namespace lockstep
