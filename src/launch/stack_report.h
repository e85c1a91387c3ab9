#pragma once

#include <sys/types.h>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// Where one rank stands, in words.
struct RankStack {
  int rank = 0;
  pid_t pid = 0;
  std::string text;       // lines, each with its end
  bool complete = false;  // it says where the process stands

  bool operator==(const RankStack&) const = default;
};

/// Where the ranks of one node stand.
struct NodeStacks {
  std::string host;
  std::vector<RankStack> ranks;
  std::vector<std::string> advice;  // what to install there to see more

  bool operator==(const NodeStacks&) const = default;
};

/// One line of JSON. It stays below what a link carries in one message: texts are cut if need be.
std::string to_json(const NodeStacks& stacks);

/// std::nullopt for what is no such text.
std::optional<NodeStacks> node_stacks_from_json(std::string_view json);

/// Prints all of them in the order of ranks, those that stand in the same place together.
void print_stacks(const std::vector<NodeStacks>& nodes, std::ostream& out);

}  // namespace lockstep
