#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace lockstep {

class GroupTeam;

/// A group's way through shared memory, where it has one, and the order in which reductions take
/// it.
///
/// Several threads of a rank reduce at the same time: that of each DistributedDataParallel, and its
/// caller's. Ranks must use the memory in one order, so every reduction draws a ticket when it is
/// called for, and waits for its turn when it runs.
///
/// Thread-safe.
class ShmChannel {
 public:
  ShmChannel();
  ~ShmChannel();

  std::int64_t take_ticket();

  /// From its turn on, until end() or its own end. Every ticket must have one.
  class Turn {
   public:
    Turn(ShmChannel& channel, std::int64_t ticket);
    ~Turn() { end(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    /// Null when the group cannot share memory. The first turn of all asks `form`.
    GroupTeam* team(const std::function<std::unique_ptr<GroupTeam>()>& form);

    void end();

   private:
    ShmChannel& channel_;
    bool ended_ = false;
  };

  /// Ends what is under way here and at the peers.
  void poison();

  /// Of others who share memory in the group: what ends the one ends the other.
  void also_poison(std::shared_ptr<GroupTeam> team);

  /// Whether reductions go through shared memory; false before the first.
  bool in_use();

 private:
  std::mutex mutex_;
  std::condition_variable next_;
  std::int64_t tickets_ = 0;
  std::int64_t turn_ = 0;
  bool formed_ = false;  // or found impossible
  bool poisoned_ = false;
  std::unique_ptr<GroupTeam> team_;
  std::vector<std::shared_ptr<GroupTeam>> others_;
};

}  // namespace lockstep
