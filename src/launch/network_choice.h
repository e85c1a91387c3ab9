#pragma once

#include <string>
#include <vector>

#include "launch/messages.h"

namespace lockstep {

/// What is known of a node when a network is chosen.
struct SurveyedNode {
  std::string host;
  std::vector<NodeAddress> addresses;  // its favourite first
  std::string named_by;                // see Addresses
};

/// A node did not reach an address of another; both by their numbers.
struct Unreached {
  int from = 0;
  int node = 0;
  int address = 0;
  std::string reason;
};

/// One address of every node, or why there is none.
struct NetworkChoice {
  std::vector<int> addresses;  // by node; empty: no network joins all of them
  std::string text;            // one line: what was chosen, or what is wrong and what can be done
};

/// Chooses for the whole job, of what was probed and not found unreached: one network that all
/// nodes have; else interfaces of one name; else each node's best address. Of several the one that
/// most nodes favour, which is the coordinator's; then the faster one; then IPv4. Addresses that
/// the user has ruled out are only looked at for what to advise.
NetworkChoice choose_network(const std::vector<SurveyedNode>& nodes,
                             const std::vector<Unreached>& unreached);

/// "a, b and 7 more".
std::string join_words(const std::vector<std::string>& words, std::size_t most = 4);

/// "10.1.0.0/24" of "10.1.0.7" and 24.
std::string network_name(const NodeAddress& address);

}  // namespace lockstep
