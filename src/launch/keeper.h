#pragma once

#include <sys/types.h>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "core/unique_fd.h"
#include "launch/keeper_protocol.h"
#include "launch/message_channel.h"

namespace lockstep {

struct KeeperOptions {
  std::chrono::milliseconds stuck_after{5000};  // from kill_leftovers() to StuckProcesses
};

/// A process of its own that is the parent of all workers, so that none outlives the launcher.
///
/// When this process ends, for whatever reason, SIGKILL included, the keeper kills the workers and
/// all that they have started, also what has put itself into a session of its own, and ends. It
/// ignores every signal that can be ignored and lies outside the terminal's reach.
///
/// If the keeper itself is killed, the kernel kills the workers, and KeeperLost comes here.
///
/// Commands are carried out in the order in which they are given, and answered by events. Not
/// thread-safe.
class Keeper {
 public:
  /// Call it before this process starts a thread. Makes this process a subreaper, so that orphans
  /// come to it should the keeper be killed. Throws SystemError.
  explicit Keeper(const KeeperOptions& options = {});

  /// Workers and all that they have started are killed. Returns when the keeper has ended; it gives
  /// up waiting after 10 s, should something not die.
  ~Keeper();

  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  pid_t pid() const { return pid_; }

  /// Readable when there are events. After KeeperLost it stays readable: stop watching it.
  int fd() const { return channel_.fd(); }

  /// The events that have come; never waits for one.
  std::vector<KeeperEvent> read();

  /// Answered by WorkerStarted and later WorkerExited, or by WorkerStartFailed. No two workers may
  /// have the same id at the same time. While leftovers are being killed, the start waits for that.
  void start(std::uint64_t id, const WorkerSpec& spec);

  /// To the worker's process group. Nothing happens if it has not been started or has ended.
  void signal(std::uint64_t id, int number);

  /// Kills all workers and all that any of them has started, and goes on until nothing is left:
  /// AllGone. If that takes long, StuckProcesses comes once before.
  void kill_leftovers(std::uint64_t request);

  /// Whether there are commands that the keeper has not taken: it is starting many workers, or
  /// stands still. Then call flush() when fd() can be written to, and again after kPatience.
  bool has_pending() const { return !pending_.empty(); }

  /// Sends what it takes now. A keeper that has taken nothing for kPatience is killed: someone has
  /// stopped it, and there is no use in going on.
  void flush();

  static constexpr std::chrono::seconds kPatience{10};

 private:
  struct Pending {
    std::string bytes;
    std::vector<UniqueFd> fds;
  };

  void send(const KeeperCommand& command);
  KeeperLost how_it_ended();

  MessageChannel channel_;
  pid_t pid_ = -1;
  UniqueFd pidfd_;
  bool lost_ = false;
  bool unresponsive_ = false;
  std::deque<Pending> pending_;
  std::chrono::steady_clock::time_point pending_since_;  // nothing was taken
};

}  // namespace lockstep
