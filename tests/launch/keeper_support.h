#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "core/unique_fd.h"
#include "launch/keeper.h"
#include "lockstep/environment.h"

namespace lockstep::testing {

// Long enough for a busy machine; a test that needs it has failed.
inline constexpr std::chrono::seconds kPatience(30);

inline bool readable(int fd, std::chrono::milliseconds limit = kPatience) {
  pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, static_cast<int>(limit.count())) == 1;
}

/// A process that is not a child of this one. Make it while the process is known to live.
class Watched {
 public:
  explicit Watched(pid_t pid)
      : pid_(pid), fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
    EXPECT_TRUE(fd_) << "no process " << pid;
  }
  pid_t pid() const { return pid_; }
  bool ended_within(std::chrono::milliseconds limit) const { return readable(fd_.get(), limit); }
  bool alive() const { return !ended_within(std::chrono::milliseconds(0)); }

 private:
  pid_t pid_;
  UniqueFd fd_;
};

/// A pipe that workers write lines to.
class LinePipe {
 public:
  LinePipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    in_ = UniqueFd(ends[0]);
    out_ = UniqueFd(ends[1]);
  }
  int write_end() const { return out_.get(); }
  void close_write_end() { out_.reset(); }

  /// Waits for it; empty at the end of the pipe.
  std::string line() {
    std::string text;
    for (char letter = 0; readable(in_.get()) && ::read(in_.get(), &letter, 1) == 1;) {
      if (letter == '\n') {
        return text;
      }
      text += letter;
    }
    return text;
  }

 private:
  UniqueFd in_;
  UniqueFd out_;
};

/// A Keeper whose events can be waited for.
class TestKeeper {
 public:
  explicit TestKeeper(const KeeperOptions& options = {}) : keeper(options) {}

  /// A worker that runs a shell script, with this process's PATH alone.
  static WorkerSpec shell(const std::string& script) {
    WorkerSpec spec;
    spec.argv = {"sh", "-c", script};
    spec.environment["PATH"] = Environment::of_process().get("PATH").value_or("/usr/bin:/bin");
    return spec;
  }

  /// The next event that is an `Event`. Others that come before it are kept for later calls.
  template <typename Event>
  Event next() {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      for (auto event = pending_.begin(); event != pending_.end(); ++event) {
        if (std::holds_alternative<Event>(*event)) {
          Event found = std::get<Event>(*event);
          pending_.erase(event);
          return found;
        }
      }
      if (std::chrono::steady_clock::now() > deadline || !readable(keeper.fd())) {
        ADD_FAILURE() << "the event did not come";
        return {};
      }
      for (KeeperEvent& event : keeper.read()) {
        pending_.push_back(std::move(event));
      }
    }
  }

  pid_t start(std::uint64_t id, const WorkerSpec& spec) {
    keeper.start(id, spec);
    const auto started = next<WorkerStarted>();
    EXPECT_EQ(started.id, id);
    return started.pid;
  }

  /// Runs it and returns what it printed.
  std::string output_of(WorkerSpec spec) {
    LinePipe pipe;
    spec.stdout_fd = pipe.write_end();
    start(1000, spec);
    pipe.close_write_end();
    std::string text;
    for (std::string line = pipe.line(); !line.empty(); line = pipe.line()) {
      text += line + "\n";
    }
    EXPECT_TRUE(next<WorkerExited>().status.success());
    return text;
  }

  Keeper keeper;

 private:
  std::deque<KeeperEvent> pending_;
};

}  // namespace lockstep::testing
