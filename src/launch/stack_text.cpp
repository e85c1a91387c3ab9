#include "launch/stack_text.h"

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <utility>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostNames = 4;

// Threads that are described by the same lines.
struct Group {
  std::string lines;
  std::vector<std::string> names;
  bool has_main = false;
};

void add(std::vector<Group>& groups, std::string lines, const std::string& name, bool main) {
  auto found = std::find_if(groups.begin(), groups.end(),
                            [&](const Group& group) { return group.lines == lines; });
  if (found == groups.end()) {
    groups.push_back({.lines = std::move(lines), .names = {}, .has_main = false});
    found = std::prev(groups.end());
  }
  found->has_main = found->has_main || main;
  if (!main) {
    found->names.push_back(name);
  }
}

// "main thread", "thread a", "main thread and 3 others: a, b, c".
std::string title_of(const Group& group) {
  std::ostringstream names;
  for (std::size_t index = 0; index < std::min(group.names.size(), kMostNames); ++index) {
    names << (index == 0 ? "" : ", ") << group.names[index];
  }
  if (group.names.size() > kMostNames) {
    names << ", ...";
  }
  if (group.names.empty()) {
    return "main thread";
  }
  if (group.has_main) {
    return concat("main thread and ", group.names.size(),
                  group.names.size() == 1 ? " other: " : " others: ", names.str());
  }
  return group.names.size() == 1 ? concat("thread ", names.str())
                                 : concat(group.names.size(), " threads: ", names.str());
}

std::string print(const std::vector<Group>& groups) {
  std::string text;
  for (const Group& group : groups) {
    text += concat("  ", title_of(group), "\n", group.lines);
  }
  return text;
}

std::string name_of(pid_t tid, const ProcessState& process) {
  for (const ThreadState& thread : process.threads) {
    if (thread.tid == tid) {
      return thread.name;
    }
  }
  return "(new)";
}

}  // namespace

std::string stacks_in_words(const std::vector<ThreadStack>& stacks, const ProcessState& process) {
  std::vector<ThreadStack> ordered = stacks;
  // gdb begins with the newest thread.
  std::stable_sort(ordered.begin(), ordered.end(),
                   [&](const ThreadStack& left, const ThreadStack& right) {
                     return std::pair(left.tid != process.pid, left.tid) <
                            std::pair(right.tid != process.pid, right.tid);
                   });
  std::vector<Group> groups;
  for (const ThreadStack& stack : ordered) {
    std::string lines;
    for (std::size_t index = 0; index < stack.frames.size(); ++index) {
      lines += concat("    #", index, " ", stack.frames[index], "\n");
    }
    add(groups, std::move(lines), name_of(stack.tid, process), stack.tid == process.pid);
  }
  return print(groups);
}

std::string states_in_words(const ProcessState& process) {
  std::vector<Group> groups;
  for (const ThreadState& thread : process.threads) {
    std::string lines = concat("    ", state_in_words(thread.state));
    lines += thread.call.empty() ? "\n" : concat(" in ", thread.call, "\n");
    // Elsewhere the call says as much, in fewer lines.
    if (thread.state == 'D') {
      for (const std::string& frame : thread.kernel_frames) {
        lines += concat("    kernel: ", frame, "\n");
      }
    }
    add(groups, std::move(lines), thread.name, thread.tid == process.pid);
  }
  return print(groups);
}

}  // namespace lockstep
