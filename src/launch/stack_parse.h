#pragma once

#include <sys/types.h>
#include <string>
#include <vector>

namespace lockstep {

/// Where one thread stands. What differs between processes that do the same, such as addresses, is
/// left out, so that stacks can be compared.
struct ThreadStack {
  pid_t tid = 0;
  std::vector<std::string> frames;  // innermost first

  bool operator==(const ThreadStack&) const = default;
};

/// What the tools print; threads without frames and all other lines are left out.
std::vector<ThreadStack> parse_gdb(const std::string& output);       // thread apply all bt
std::vector<ThreadStack> parse_eu_stack(const std::string& output);  // eu-stack -p
std::vector<ThreadStack> parse_py_spy(const std::string& output);    // py-spy dump

}  // namespace lockstep
