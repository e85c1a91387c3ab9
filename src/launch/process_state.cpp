#include "launch/process_state.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/parse_integer.h"
#include "launch/system_call_words.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int kMostShells = 8;
constexpr std::array<std::string_view, 6> kShells = {"sh", "bash", "dash", "zsh", "ksh", "ash"};

std::string first_line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The letter after the name in "123 (a name) S 1 ...". A name may hold brackets and blanks.
char state_of(const std::string& stat) {
  const std::size_t end = stat.rfind(')');
  return end == std::string::npos || end + 2 >= stat.size() ? '?' : stat[end + 2];
}

// "[<0>] futex_wait+0x11c/0x1a0" without what changes from start to start.
std::vector<std::string> read_kernel_frames(const fs::path& path) {
  std::vector<std::string> frames;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t begin = line.find("] ");
    if (begin != std::string::npos) {
      const std::string frame = line.substr(begin + 2);
      frames.push_back(frame.substr(0, frame.find('+')));
    }
  }
  return frames;
}

ThreadState read_thread(const fs::path& task, pid_t tid) {
  ThreadState thread;
  thread.tid = tid;
  thread.name = first_line_of(task / "comm");
  thread.state = state_of(first_line_of(task / "stat"));
  thread.call = system_call_in_words(first_line_of(task / "syscall"), (task / "fd").string());
  thread.kernel_frames = read_kernel_frames(task / "stack");
  return thread;
}

bool runs_python(const fs::path& process) {
  std::error_code error;
  const fs::path program = fs::read_symlink(process / "exe", error);
  if (!error && program.filename().string().starts_with("python")) {
    return true;
  }
  std::ifstream maps(process / "maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/libpython") != std::string::npos) {
      return true;
    }
  }
  return false;
}

std::vector<pid_t> children_of(pid_t pid, const std::string& proc) {
  std::ifstream file(concat(proc, "/", pid, "/task/", pid, "/children"));
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) {
    children.push_back(child);
  }
  return children;
}

}  // namespace

bool ProcessState::has_ended() const {
  return std::all_of(threads.begin(), threads.end(), [](const ThreadState& thread) {
    return thread.state == 'Z' || thread.state == 'X';
  });
}

bool ProcessState::is_stopped() const {
  return std::any_of(threads.begin(), threads.end(),
                     [](const ThreadState& thread) { return thread.state == 'T'; });
}

std::optional<ProcessState> inspect_process(pid_t pid, const std::string& proc) {
  const fs::path folder = fs::path(proc) / std::to_string(pid);
  ProcessState process;
  process.pid = pid;
  std::error_code error;
  for (fs::directory_iterator entry(folder / "task", error), end; !error && entry != end;
       entry.increment(error)) {
    if (const auto tid = parse_integer<pid_t>(entry->path().filename().string())) {
      process.threads.push_back(read_thread(entry->path(), *tid));
    }
  }
  if (process.threads.empty()) {
    return std::nullopt;
  }
  std::sort(process.threads.begin(), process.threads.end(),
            [pid](const ThreadState& left, const ThreadState& right) {
              return std::pair(left.tid != pid, left.tid) < std::pair(right.tid != pid, right.tid);
            });
  std::ifstream status(folder / "status");
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name == "Uid:") {
      words >> process.uid;
    } else if (name == "TracerPid:") {
      words >> process.tracer;
    }
  }
  process.python = runs_python(folder);
  return process;
}

std::string state_in_words(char state) {
  switch (state) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping";
    case 'D':
      return "waiting in the kernel, where no signal reaches it";
    case 'T':
      return "stopped by a signal";
    case 't':
      return "held by a debugger";
    case 'Z':
    case 'X':
      return "ended";
    case 'I':
      return "idle";
    default:
      return concat("in state '", state, "'");
  }
}

pid_t behind_shells(pid_t pid, const std::string& proc) {
  for (int depth = 0; depth < kMostShells; ++depth) {
    const std::string name = first_line_of(concat(proc, "/", pid, "/comm"));
    const std::vector<pid_t> children = children_of(pid, proc);
    if (std::find(kShells.begin(), kShells.end(), name) == kShells.end() || children.size() != 1) {
      return pid;
    }
    pid = children.front();
  }
  return pid;
}

}  // namespace lockstep
