#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace lockstep {

class GroupImpl;

/// The groups of a world that can be used, and whether the launcher has revoked the membership that
/// they belong to. It outlives the world where the launcher's word comes last.
///
/// Thread-safe.
class LiveGroups {
 public:
  /// `epoch` is the launcher's number of the membership.
  explicit LiveGroups(std::uint64_t epoch) : epoch_(epoch) {}

  void add(std::shared_ptr<GroupImpl> group);

  /// Ends what is in flight on all of them; see ProcessGroup::abort().
  void abort();

  /// Leaves all of them.
  void leave();

  /// Another membership is being formed: aborts the groups of those before it.
  void revoke(std::uint64_t epoch);

  /// From now on this is the membership, and only a later one revokes it.
  void enter(std::uint64_t epoch);

  std::uint64_t epoch() const;
  bool revoked() const;
  /// False once an operation on one of them has failed.
  bool all_work() const;
  /// Waits for the launcher's word; false at the limit.
  bool await_revocation(std::chrono::milliseconds limit) const;

 private:
  std::vector<std::shared_ptr<GroupImpl>> copy() const;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<std::shared_ptr<GroupImpl>> groups_;
  std::uint64_t epoch_ = 0;
  std::uint64_t newest_ = 0;  // of which a revocation told
};

}  // namespace lockstep
