#include "launch/descendants.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <memory>
#include <sstream>
#include <string_view>
#include <unordered_map>

#include "core/parse_integer.h"
#include "core/unique_fd.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// std::nullopt if it does not exist or its process has just ended.
std::optional<std::string> read_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    return std::nullopt;
  }
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return std::nullopt;
    }
    if (count == 0) {
      return text;
    }
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

// The entries of a folder that are numbers.
std::vector<pid_t> numbers_in(const std::string& folder) {
  std::vector<pid_t> numbers;
  const auto close = [](DIR* directory) { ::closedir(directory); };
  const std::unique_ptr<DIR, decltype(close)> directory(::opendir(folder.c_str()), close);
  while (const dirent* entry = directory ? ::readdir(directory.get()) : nullptr) {
    if (const auto number = parse_integer<pid_t>(entry->d_name)) {
      numbers.push_back(*number);
    }
  }
  return numbers;
}

// A line of /proc/PID/stat. The name stands in parentheses and may itself hold any character, so
// the last one closes it.
std::optional<ProcessInfo> parse_stat(const std::string& text) {
  const std::size_t open = text.find('(');
  const std::size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) {
    return std::nullopt;
  }
  ProcessInfo process;
  process.name = text.substr(open + 1, close - open - 1);
  std::istringstream before(text.substr(0, open));
  std::istringstream after(text.substr(close + 1));
  before >> process.pid;
  after >> process.state >> process.parent >> process.group >> process.session;
  std::string skipped;
  constexpr int kBetweenSessionAndStart = 15;
  for (int field = 0; field < kBetweenSessionAndStart; ++field) {
    after >> skipped;
  }
  after >> process.start_ticks;
  return before && after ? std::optional(process) : std::nullopt;
}

std::string folder_of(const std::string& proc, pid_t pid) {
  return concat(proc, "/", pid);
}

// Which children each process has. Every process of the machine is looked at.
std::unordered_map<pid_t, std::vector<ProcessInfo>> all_children(const std::string& proc) {
  std::unordered_map<pid_t, std::vector<ProcessInfo>> children;
  for (const pid_t pid : numbers_in(proc)) {
    if (auto process = read_process(pid, proc)) {
      children[process->parent].push_back(*std::move(process));
    }
  }
  return children;
}

// The children of a process by the file that some kernels have (CONFIG_PROC_CHILDREN);
// std::nullopt where they have not. Children belong to the thread that started them.
std::optional<std::vector<ProcessInfo>> listed_children(const std::string& proc, pid_t pid) {
  const std::string tasks = folder_of(proc, pid) + "/task";
  std::vector<ProcessInfo> children;
  for (const pid_t tid : numbers_in(tasks)) {
    const std::string task = folder_of(tasks, tid);
    const auto text = read_file(task + "/children");
    if (!text) {
      if (::access((task + "/stat").c_str(), F_OK) == 0) {
        return std::nullopt;
      }
      continue;  // the thread has ended
    }
    std::istringstream words(*text);
    for (pid_t child = 0; words >> child;) {
      if (auto process = read_process(child, proc)) {
        children.push_back(*std::move(process));
      }
    }
  }
  return children;
}

}  // namespace

std::optional<ProcessInfo> read_process(pid_t pid, const std::string& proc) {
  const auto text = read_file(folder_of(proc, pid) + "/stat");
  return text ? parse_stat(*text) : std::nullopt;
}

std::optional<BlockedThread> blocked_thread(pid_t pid, const std::string& proc) {
  const std::string tasks = folder_of(proc, pid) + "/task";
  for (const pid_t tid : numbers_in(tasks)) {
    const auto thread = read_process(tid, tasks);
    if (thread && thread->state == 'D') {
      std::string place = read_file(folder_of(tasks, tid) + "/wchan").value_or("");
      if (place == "0") {
        place.clear();
      }
      return BlockedThread{.tid = tid, .waits_in = std::move(place)};
    }
  }
  return std::nullopt;
}

std::vector<ProcessInfo> descendants_of(pid_t pid, const std::string& proc) {
  std::vector<ProcessInfo> found;
  std::optional<std::unordered_map<pid_t, std::vector<ProcessInfo>>> by_parent;
  const auto add_children = [&](pid_t parent) {
    if (!by_parent) {
      if (auto listed = listed_children(proc, parent)) {
        found.insert(found.end(), listed->begin(), listed->end());
        return;
      }
      by_parent = all_children(proc);
    }
    // Taken out, so that a pid reused while we looked cannot send us in a circle.
    if (const auto node = by_parent->extract(parent)) {
      found.insert(found.end(), node.mapped().begin(), node.mapped().end());
    }
  };
  add_children(pid);
  for (std::size_t next = 0; next < found.size(); ++next) {
    add_children(found[next].pid);
  }
  return found;
}

std::string describe(const ProcessInfo& process, const std::optional<BlockedThread>& blocked) {
  std::string text = concat(process.pid, " (", process.name, ")");
  if (blocked) {
    text += ", blocked in the kernel (state D)";
    if (!blocked->waits_in.empty()) {
      text += " in " + blocked->waits_in;
    }
  } else if (process.ended()) {
    text += ", ended, but a debugger or its parent keeps it (state Z)";
  } else {
    text += concat(", state ", process.state);
  }
  return text;
}

}  // namespace lockstep
