#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi_plugin.h"

namespace lockstep {

/// The one thread of this process that calls MPI. It starts operations in the order in which they
/// were posted, and sees to it that those under way get on; several may be.
///
/// Thread-safe.
class MpiThread {
 public:
  /// Loads and starts MPI the first time; it is ended with the process. Throws InvalidArgument when
  /// there is none, or the process was not started by mpirun.
  static MpiThread& get();

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Every member calls it. `number` tells groups of the same ranks apart.
  void* make_group(const std::vector<int>& ranks, int number);

  struct Call {
    LockstepMpiOperation operation{};
    /// Called on the thread, one of them: with the rank that sent, or with what went wrong.
    std::function<void(int source)> done;
    std::function<void(std::exception_ptr)> failed;
    std::chrono::milliseconds timeout{};
  };
  void post(Call call);

  /// Fails what this group has under way and all that comes after. What MPI still knows of it keeps
  /// its memory, and MPI is not ended in good order any more.
  void give_up(void* group);

 private:
  MpiThread();
  ~MpiThread();

  struct Active {
    Call call;
    void* request = nullptr;
    std::chrono::steady_clock::time_point deadline;
  };

  void run();
  bool start_mpi(std::string& problem);
  void begin(Call call);
  /// Whether one has ended.
  bool look_after_all();
  void run_there(const std::function<void()>& task);

  const LockstepMpi* mpi_ = nullptr;
  int rank_ = 0, size_ = 1;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;

  // Of the thread alone.
  std::list<Active> active_;
  std::vector<void*> given_up_;    // groups
  std::vector<Active> abandoned_;  // operations that MPI may still write into
  std::thread thread_;
};

/// Where the ranks of `mpirun -n N program` meet that were told no MASTER_ADDR: rank 0 chooses a
/// port and tells the others by MPI.
void meet_by_mpi();

}  // namespace lockstep
