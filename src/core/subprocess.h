#pragma once

#include <sys/types.h>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/unique_fd.h"

namespace lockstep {

/// How a process ended: by itself with a code, or by a signal.
struct ExitStatus {
  int exit_code = 0;
  int signal = 0;  // 0: it ended by itself

  bool success() const { return exit_code == 0 && signal == 0; }

  /// "exit code 3" or "signal 9 (SIGKILL)".
  std::string describe() const;

  bool operator==(const ExitStatus&) const = default;
};

struct SubprocessOptions {
  std::vector<std::string> argv;  // argv[0] without a slash is looked up on the new PATH
  std::map<std::string, std::string> set_environment;  // on top of this process's environment
  std::vector<std::string> unset_environment;          // taken away before the above is set
  std::string stdout_path;  // created or emptied, written in append mode; empty: inherit
  std::string stderr_path;  // likewise; may be the same file
  bool die_with_parent = true;
};

/// A program that runs beside this one.
///
/// It inherits standard input, working directory and ignored signals (but not an ignored SIGPIPE),
/// starts with no signal blocked, and gets no descriptor beyond the standard three.
///
/// With die_with_parent the kernel sends it SIGKILL when its parent dies, even of SIGKILL itself.
/// The kernel's notion of a parent is the thread that started it: start long-lived programs from a
/// thread that lives as long, such as the main thread. Programs that it starts in turn are not
/// covered.
///
/// Not thread-safe; different objects may be used by different threads.
class Subprocess {
 public:
  /// Returns once the program runs. Throws InvalidArgument for options that cannot work and
  /// SystemError, naming the program or the file, when the system refuses.
  explicit Subprocess(const SubprocessOptions& options);

  /// Sends SIGKILL to a program that still runs, and waits for its end.
  ~Subprocess();

  Subprocess(Subprocess&& other) noexcept;
  Subprocess& operator=(Subprocess&& other) noexcept;

  pid_t pid() const { return pid_; }

  /// Readable once the program has ended, for use with poll and epoll. Owned by this object.
  int pidfd() const { return pidfd_.get(); }

  /// Waits for the end at most this long; std::nullopt if the program still runs then.
  std::optional<ExitStatus> wait_for(std::chrono::milliseconds timeout);

  ExitStatus wait();

  /// Does nothing once the end has been waited for: the pid may already be another process's.
  void signal(int number);

  /// How the program ended, as far as wait() or wait_for() has seen it.
  const std::optional<ExitStatus>& status() const { return status_; }

 private:
  void reap();
  void kill_and_reap() noexcept;

  pid_t pid_ = -1;
  UniqueFd pidfd_;
  std::optional<ExitStatus> status_;
};

}  // namespace lockstep
