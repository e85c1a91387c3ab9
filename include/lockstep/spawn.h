#pragma once

#include <functional>
#include <string>

#include "lockstep/error.h"

namespace lockstep {

/// One of the processes that spawn() started ended badly. The message carries that process's own
/// error where it left one (see lockstep/record.h).
class SpawnFailed : public Error {
 public:
  struct Details {
    int rank = -1;
    int exit_code = 0;
    int signal = 0;
  };
  SpawnFailed(const std::string& message, const Details& details)
      : Error(message), details_(details) {}

  int rank() const { return details_.rank; }
  int exit_code() const { return details_.exit_code; }
  int signal() const { return details_.signal; }

 private:
  Details details_;
};

/// Starts `nprocs` processes of this program and runs `fn(rank)` in each; returns when all have
/// ended well. Inside fn, lockstep::init() finds the others. What mp.spawn is in Python.
///
/// Each process is a fresh start of this executable with the same arguments: main() runs again up
/// to this call, where it runs fn instead and exits. A fork would copy libtorch's state without its
/// threads. So what stands before the call in main() happens in every process.
///
/// The first process that fails stops the others; then SpawnFailed is thrown. SIGTERM and SIGUSR1
/// are passed on to the processes.
void spawn(const std::function<void(int rank)>& fn, int nprocs);

}  // namespace lockstep
