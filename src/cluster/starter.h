#pragma once

#include <sys/types.h>
#include <functional>
#include <memory>
#include <string>

#include "cluster/start_command.h"
#include "core/subprocess.h"
#include "core/unique_fd.h"
#include "launch/event_loop.h"

namespace lockstep {

/// A process (ssh, srun, pbsdsh, or the launcher itself) that runs `lockstep` on a machine, on an
/// event loop.
///
/// It has a session of its own, so that what a user types at the terminal is for the head alone.
/// As long as this object lives its standard input stays open: its end is how agents notice that
/// nobody looks after them any more.
class Starter {
 public:
  struct Output {
    int stdout_fd = -1;  // -1: this process's
    int stderr_fd = -1;
  };

  /// Calls `ended` once, from the loop; it may destroy this object. Throws SystemError if the
  /// process cannot be started.
  Starter(EventLoop& loop, const StartCommand& command, const Output& output,
          std::function<void(const ExitStatus&)> ended);

  /// Kills what still runs.
  ~Starter();
  Starter(const Starter&) = delete;
  Starter& operator=(const Starter&) = delete;

  pid_t pid() const { return pid_; }

  /// Closes its standard input: the agent is asked to end.
  void hang_up();

 private:
  void write_input();
  void on_end();

  EventLoop& loop_;
  std::function<void(const ExitStatus&)> ended_;
  std::string unwritten_;
  std::string brief_file_;
  UniqueFd input_;
  bool watches_input_ = false;
  pid_t pid_ = -1;
  UniqueFd pidfd_;
};

}  // namespace lockstep
