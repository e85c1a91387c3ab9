#pragma once

#include <csignal>
#include <optional>
#include <vector>

#include "core/unique_fd.h"

namespace lockstep {

/// SIGTERM, SIGINT, SIGHUP and SIGQUIT, as torchrun has them.
std::vector<int> default_stop_signals();

/// The signals that other processes and the terminal send to the launcher, as a stream.
///
/// Stop signals ask for the end of the job. SIGUSR1, SIGUSR2 and SIGWINCH are meant for the workers
/// unless they are among the stop signals. SIGHUP does not come if it was ignored when this process
/// started, as nohup arranges. While there is an inbox, SIGPIPE is ignored: a reader that goes away
/// is an error of the write.
///
/// Make it in the main thread before others start: they inherit that these signals are blocked.
/// Not thread-safe.
class SignalInbox {
 public:
  /// Throws InvalidArgument for a signal that cannot be waited for.
  explicit SignalInbox(std::vector<int> stop_signals = default_stop_signals());

  /// Puts back what the constructor has changed in this thread. Signals that have not been read by
  /// then are dropped.
  ~SignalInbox();

  SignalInbox(const SignalInbox&) = delete;
  SignalInbox& operator=(const SignalInbox&) = delete;

  /// Readable when next() has something.
  int fd() const { return fd_.get(); }

  /// The number of a signal that has come, the lowest first; std::nullopt if there is none. A
  /// signal that came twice before it was read counts once.
  std::optional<int> next();

  /// Whether it ends the job; otherwise it is for the workers.
  bool is_stop(int number) const;

 private:
  std::vector<int> stop_signals_;
  sigset_t mask_before_;
  struct sigaction pipe_before_;
  UniqueFd fd_;
};

}  // namespace lockstep
