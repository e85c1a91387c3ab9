#pragma once

#include <sys/types.h>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

struct ThreadState {
  pid_t tid = 0;
  std::string name;
  char state = '?';                        // the kernel's letter: R, S, D, T, ...
  std::string call;                        // the system call it is in: "futex", "read of ..."
  std::vector<std::string> kernel_frames;  // innermost first; only root may read them
};

/// What the kernel says of a process without being asked to stop it, so that this always answers.
struct ProcessState {
  pid_t pid = 0;
  uid_t uid = 0;
  pid_t tracer = 0;  // the debugger that already looks into it
  bool python = false;
  std::vector<ThreadState> threads;  // the main one first

  /// All of it, so that it waits only for its parent to notice.
  bool has_ended() const;

  /// Stopped by a signal, as by Ctrl-Z or SIGSTOP.
  bool is_stopped() const;
};

/// std::nullopt if there is no such process. `proc` is where the kernel's process files are.
std::optional<ProcessState> inspect_process(pid_t pid, const std::string& proc = "/proc");

/// "sleeping", "stopped by a signal".
std::string state_in_words(char state);

/// The process that does a rank's work: of a shell that waits for its only child, the child.
pid_t behind_shells(pid_t pid, const std::string& proc = "/proc");

}  // namespace lockstep
