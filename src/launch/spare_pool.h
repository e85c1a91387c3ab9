#pragma once

#include <sys/types.h>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "launch/agent.h"
#include "launch/event_loop.h"
#include "launch/events.h"
#include "launch/job_plan.h"
#include "launch/keeper.h"
#include "launch/log_pump.h"

namespace lockstep {

/// A process that waits for a place among the workers of this node.
struct Spare {
  std::uint64_t id = 0;  // the keeper's
  int number = 0;
  pid_t pid = 0;       // 0: not yet running
  bool ready = false;  // it has loaded its program and waits
  EventLoop::Clock::time_point started;
  std::uint64_t stdout_stream = 0;  // of the pump, which holds them back
  std::uint64_t stderr_stream = 0;
};

/// The warm spares of this node (--spares): processes of the same program that have loaded all they
/// need and wait, without a rank, until they take the place of a worker that died. They are no
/// workers: no job waits for one, and none is stopped or failed because of one.
///
/// A spare that ends by itself is started again, later each time; after a few times a line says
/// that there are none.
class SparePool {
 public:
  struct Services {
    EventLoop& loop;
    Keeper& keeper;
    LogPump& pump;
    EventLog& events;
    std::string agent_socket;
    std::string run_directory;
    std::function<void(const std::string&)> say;
    std::chrono::milliseconds back_off{
        1000};  // after the first that ends; twice that after the next
  };

  SparePool(const JobPlan& plan, Services services);
  ~SparePool();
  SparePool(const SparePool&) = delete;
  SparePool& operator=(const SparePool&) = delete;

  /// Starts as many as are missing, for this membership.
  void fill(const Membership& membership);

  /// True if the event was about a spare.
  bool on(const KeeperEvent& event);

  /// Which spare the process is, if it is one.
  std::optional<int> number_of(pid_t pid) const;
  void set_ready(int number);

  /// One that is ready. It is the caller's from now on.
  std::optional<Spare> take();

  /// What take() gave and is of no use after all.
  void discard(const Spare& spare);

  /// Asks all of them to end, and soon kills them.
  void stop();

  /// No process is left.
  void forget();

 private:
  void start_missing();
  void start_one();
  void give_up(const std::string& reason);
  void ended(std::uint64_t id, const std::string& how);
  void refill_later();
  void close_streams(const Spare& spare);

  const JobPlan& plan_;
  Services services_;
  Membership membership_;
  std::map<std::uint64_t, Spare> spares_;  // by id
  int last_number_ = 0;
  int ends_ = 0;  // by themselves, one after the other
  bool stopped_ = false;
  bool given_up_ = false;
  EventLoop::TimerId refill_{};
  EventLoop::TimerId kill_{};
};

}  // namespace lockstep
