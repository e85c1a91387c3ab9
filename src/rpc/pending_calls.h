#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "lockstep/rpc_error.h"
#include "lockstep/rpc_future.h"

namespace lockstep::rpc {

/// A call that waits for its answer, and what to say if it fails.
struct PendingCall {
  std::shared_ptr<detail::CallState> state;
  std::chrono::steady_clock::time_point deadline;
  std::chrono::milliseconds timeout{0};
  std::string what;  // "function 'add'"
  std::string signature;
  std::shared_ptr<void> object = nullptr;  // that it is a method of: it is not dropped meanwhile
};

/// Ends a call with the error that belongs to the failure.
void fail_call(const PendingCall& call, const std::string& peer, const Failure& failure);

/// The calls over one connection that are not answered yet. Thread-safe.
class PendingCalls {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// How many there may be at a time.
  void set_limit(std::size_t limit);
  void set_peer(std::string peer) { peer_ = std::move(peer); }

  /// Its number. Waits for room until the call's deadline; then, and after fail_all(), it fails the
  /// call and returns nothing.
  std::optional<std::uint64_t> add(PendingCall call);
  /// Whether someone waits for its answer.
  bool contains(std::uint64_t number) const;
  /// Its answer has come. Nothing if nobody waits for it any more.
  std::optional<PendingCall> take(std::uint64_t number);
  /// It will have no answer: it could not be sent in time.
  void abandon(std::uint64_t number);

  /// Fails those whose time is over. Returns the deadline of the next. They take room until their
  /// answers come: the peer still has them.
  Time expire(Time now);
  /// Fails all, and those that are added later.
  void fail_all(const Failure& failure);

 private:
  void fail(const PendingCall& call, const Failure& failure) const {
    fail_call(call, peer_, failure);
  }

  std::string peer_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t limit_ = 1;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, PendingCall> calls_;
  std::set<std::uint64_t> late_;
  std::optional<Failure> closed_;
};

}  // namespace lockstep::rpc
