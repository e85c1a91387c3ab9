#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The hosts that Slurm's notation names, in its order: "n[1-3,07-09],gpu5,a[1-2]b[3-4]".
/// `scontrol show hostnames` does the same, but is missing inside most containers.
///
/// Throws InvalidArgument for text that is not such a list, that names more hosts than Slurm can
/// have (65536), or that holds a name no host can have.
std::vector<std::string> expand_hostlist(std::string_view text);

/// How many tasks a node has by Slurm's notation: in "2(x3),1" nodes 0 to 2 have two and node 3 has
/// one. Throws InvalidArgument for malformed text and for a node beyond its end.
int tasks_on_node(std::string_view text, int node);

}  // namespace lockstep
