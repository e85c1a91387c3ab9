#pragma once

#include <pthread.h>
#include <csignal>

namespace lockstep {

/// Blocks all signals in this thread while it exists. A thread that is started meanwhile keeps them
/// blocked, so that signals reach the main thread only, and a closed pipe is an error and no
/// signal.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace lockstep
