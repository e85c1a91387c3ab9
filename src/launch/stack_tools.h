#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launch/process_state.h"
#include "launch/stack_parse.h"

namespace lockstep {

/// The programs that can look into another process, where they are installed.
struct StackTools {
  std::optional<std::string> gdb;
  std::optional<std::string> eu_stack;
  std::optional<std::string> py_spy;

  /// Those on `path`, which is written as PATH is.
  static StackTools on(const std::string& path);

  bool any_native() const { return gdb || eu_stack; }
};

/// What tools made of one process.
struct ToolStacks {
  std::vector<ThreadStack> native;
  std::vector<ThreadStack> python;
  std::vector<std::string> notes;  // why something is missing, a line each
};

/// Asks the tools that fit: for Python's own lines py-spy, for functions gdb, else eu-stack, one
/// after the other, because a process lets itself be looked into by one at a time. It stands still
/// meanwhile and goes on afterwards, or stays stopped if it was.
///
/// A tool that does not answer in time is ended, and the process is sent SIGCONT unless it was
/// stopped before: a debugger that dies at the wrong moment leaves it stopped.
ToolStacks ask_tools(const StackTools& tools, const ProcessState& process,
                     std::chrono::milliseconds time_limit);

/// Why a process of another user, or under the kernel's rules, cannot be looked into, and what
/// helps. `scope` is the content of kernel.yama.ptrace_scope, empty where there is none.
std::string permission_hint(const ProcessState& process, const std::string& scope);
std::string permission_hint(const ProcessState& process);  // the scope is this machine's

}  // namespace lockstep
