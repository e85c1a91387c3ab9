#include "launch/stack_tools.h"

#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <fstream>
#include <sstream>

#include "core/captured_program.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr auto kTimeToLetGo = milliseconds(500);
constexpr std::size_t kMostOutput = std::size_t{16} << 20;

bool is_program(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

std::optional<std::string> find_on(const std::string& path, const std::string& name) {
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = concat(folder.empty() ? "." : folder, "/", name);
    if (is_program(candidate)) {
      return candidate;
    }
  }
  return std::nullopt;
}

CapturedProgram run_tool(const std::vector<std::string>& command, milliseconds time_limit) {
  try {
    return run_captured({.argv = command,
                         .limit = time_limit,
                         .set_environment = {{"LC_ALL", "C"}},
                         // Debuggers have a Python inside, and may look for symbols on the network.
                         .unset_environment = {"PYTHONPATH", "PYTHONHOME", "DEBUGINFOD_URLS"},
                         .grace = kTimeToLetGo,
                         .most_bytes = kMostOutput});
  } catch (const SystemError& error) {
    return {.in_time = true, .status = {.exit_code = 127}, .out = "", .err = error.what()};
  }
}

std::vector<std::string> gdb_command(const std::string& gdb, pid_t pid) {
  return {gdb,
          "-nx",
          "-batch",
          "-iex",
          "set debuginfod enabled off",
          "-iex",
          "set auto-load no",
          "-iex",
          "set print address off",
          "-iex",
          "set print frame-arguments presence",
          "-iex",
          "set width 0",
          "-p",
          std::to_string(pid),
          "-ex",
          "thread apply all bt 64"};
}

std::vector<std::string> py_spy_command(const std::string& py_spy, const ProcessState& process,
                                        bool with_native) {
  std::vector<std::string> command = {py_spy, "dump", "--pid", std::to_string(process.pid)};
  if (process.is_stopped()) {
    command.push_back("--nonblocking");  // it fails to stop what already is
  } else if (with_native) {
    command.push_back("--native");
  }
  return command;
}

std::string read_ptrace_scope() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  std::string scope;
  std::getline(file, scope);
  return scope;
}

bool speaks_of_permission(const std::string& text) {
  for (const char* words : {"not permitted", "ermission denied", "EPERM", "must be run as root"}) {
    if (text.find(words) != std::string::npos) {
      return true;
    }
  }
  return false;
}

// The line in which a tool says why. The first that sounds like it; tools print more after.
std::string complaint_in(const std::string& errors) {
  std::istringstream lines(errors);
  std::string first;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("ptrace") != std::string::npos || line.find("rror") != std::string::npos ||
        speaks_of_permission(line)) {
      return line;
    }
    first = first.empty() ? line : first;
  }
  return first.empty() ? "it printed nothing" : first;
}

struct Tool {
  const char* name;
  std::vector<std::string> command;
  std::vector<ThreadStack> (*parse)(const std::string&);
};

std::vector<ThreadStack> ask(const Tool& tool, const ProcessState& process, milliseconds time_limit,
                             std::vector<std::string>& notes) {
  const CapturedProgram answer = run_tool(tool.command, time_limit);
  std::vector<ThreadStack> stacks = tool.parse(answer.out);
  if (!answer.in_time) {
    if (!process.is_stopped()) {
      ::kill(process.pid, SIGCONT);
    }
    notes.push_back(concat(tool.name, " gave no answer within ", time_limit.count(), " ms"));
  } else if (stacks.empty()) {
    // gdb says why on standard error, py-spy partly on standard output.
    const std::string said = answer.err.empty() ? answer.out : answer.err;
    notes.push_back(concat(tool.name, " failed: ", complaint_in(said)));
    if (speaks_of_permission(said)) {
      notes.push_back(permission_hint(process));
    }
  }
  return stacks;
}

}  // namespace

StackTools StackTools::on(const std::string& path) {
  return {.gdb = find_on(path, "gdb"),
          .eu_stack = find_on(path, "eu-stack"),
          .py_spy = find_on(path, "py-spy")};
}

std::string permission_hint(const ProcessState& process, const std::string& scope) {
  if (::geteuid() != 0 && process.uid != ::geteuid()) {
    return concat("process ", process.pid, " belongs to user ", process.uid,
                  "; run this as that user or as root");
  }
  if (scope == "3") {
    return "kernel.yama.ptrace_scope is 3: this machine lets nobody look into processes until it "
           "is started anew";
  }
  if (::geteuid() != 0 && (scope == "1" || scope == "2")) {
    return concat("kernel.yama.ptrace_scope is ", scope,
                  ": run this as root, or allow it with: sysctl kernel.yama.ptrace_scope=0");
  }
  return "this container may not look into processes; start it with --cap-add SYS_PTRACE";
}

std::string permission_hint(const ProcessState& process) {
  return permission_hint(process, read_ptrace_scope());
}

ToolStacks ask_tools(const StackTools& tools, const ProcessState& process,
                     milliseconds time_limit) {
  ToolStacks result;
  if (process.python && tools.py_spy) {
    const Tool tool{
        .name = "py-spy",
        .command = py_spy_command(*tools.py_spy, process, /*with_native=*/!tools.any_native()),
        .parse = parse_py_spy};
    result.python = ask(tool, process, time_limit, result.notes);
  }
  if (tools.gdb) {
    const Tool tool{
        .name = "gdb", .command = gdb_command(*tools.gdb, process.pid), .parse = parse_gdb};
    result.native = ask(tool, process, time_limit, result.notes);
  }
  if (result.native.empty() && tools.eu_stack) {
    const Tool tool{.name = "eu-stack",
                    .command = {*tools.eu_stack, "-p", std::to_string(process.pid)},
                    .parse = parse_eu_stack};
    result.native = ask(tool, process, time_limit, result.notes);
  }
  return result;
}

}  // namespace lockstep
