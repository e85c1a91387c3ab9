#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/peers.h"
#include "control/progress_meter.h"

namespace lockstep {

/// Stands between a backend and its users: turns what the backend throws into this library's
/// errors, and makes the first failure the end of the whole group.
///
/// A group whose connections are half dead would let some ranks wait for ranks that have already
/// given up. So the rank that sees a failure closes all its connections, which the others see in
/// turn: everybody learns of it in the time of a few system calls.
///
/// Thread-safe.
class GroupGuard {
 public:
  struct Options {
    int rank = 0;  // in the group
    std::string group_name;
    std::vector<int> global_ranks;
    std::shared_ptr<const Peers> peers;
    std::shared_ptr<ProgressMeter> meter = nullptr;  // for the launcher; null: nobody listens
  };

  explicit GroupGuard(Options options) : options_(std::move(options)) {}

  /// How to end what is in flight. Set once, before operations start.
  void set_close(std::function<void()> close) { close_ = std::move(close); }

  /// Who the ranks are becomes known once all are connected. Set before operations start.
  void set_peers(std::shared_ptr<const Peers> peers) { options_.peers = std::move(peers); }

  /// Throws when the group is no longer usable.
  void check_usable(const char* operation);

  /// Throws the library's error for what a backend threw in `operation`.
  [[noreturn]] void rethrow(const std::exception_ptr& failure, const char* operation);

  /// Counts operations whose tensors the backend may still touch; as long as one is under way, this
  /// process may be waiting for others. `ended` is set under the guard's lock, for await_end().
  void operation_began(const char* operation);
  void operation_ended(bool* ended = nullptr);

  /// The same for a thread that waits for an operation which is not counted above.
  void wait_began(const char* operation);
  void wait_ended();

  /// Waits until the operation has ended. False when the group is broken and its threads do not let
  /// go of the operation: Gloo forgets sends whose connection ends at the same moment.
  bool await_end(const bool& ended);

  /// Counts one operation of the calling thread.
  class InFlight {
   public:
    InFlight(GroupGuard& guard, const char* operation) : guard_(guard) {
      guard_.operation_began(operation);
    }
    ~InFlight() { guard_.operation_ended(); }
    InFlight(const InFlight&) = delete;
    InFlight& operator=(const InFlight&) = delete;

   private:
    GroupGuard& guard_;
  };

  /// A thread that waits for others.
  class Waiting {
   public:
    Waiting(GroupGuard& guard, const char* operation) : guard_(guard) {
      guard_.wait_began(operation);
    }
    ~Waiting() { guard_.wait_ended(); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    GroupGuard& guard_;
  };

  /// Ends what is in flight, without waiting for that.
  void break_off();

  /// Ends what is in flight: afterwards the backend touches no tensor any more.
  void abort();

  /// Whether the backend holds on to operations of a group that was aborted: its threads cannot be
  /// joined.
  bool is_stuck();

  /// Refuses further operations: the world was left. False if the group had failed before.
  bool retire();

  bool working();

  const Options& options() const { return options_; }

 private:
  enum class State { working, aborted, retired, peer_lost, timed_out, failed };

  struct Verdict {
    State state = State::failed;
    std::vector<int> dead;  // world ranks
    std::string reason;
  };

  static Verdict judge(const std::string& text);
  [[noreturn]] void throw_verdict(const Verdict& verdict, const char* operation) const;
  std::string prefix(const char* operation) const;
  /// Waits for a broken group's threads, once for all.
  template <typename Condition>
  bool let_go(std::unique_lock<std::mutex>& lock, Condition condition);
  void meter_began(const char* operation);
  void meter_ended();
  /// Nobody is waited for in a group that has ended, whatever its backend holds on to.
  void stop_metering();

  Options options_;
  std::function<void()> close_;

  std::mutex mutex_;
  Verdict verdict_{.state = State::working, .dead = {}, .reason = ""};  // the first failure
  std::condition_variable changed_;  // the verdict, or what is in flight
  int in_flight_ = 0;
  int metered_ = 0;  // waits that the meter was told of
  bool given_up_ = false;
};

}  // namespace lockstep
