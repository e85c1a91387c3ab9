#pragma once

#include <sched.h>
#include <sys/resource.h>

namespace lockstep {

/// For a thread beside the one that trains: it does not take the processor away when it wakes up,
/// and gets the smaller share of one that both need. What it writes can wait for milliseconds; a
/// step cannot. It must not hold a lock for long that the other one takes.
inline void work_in_background() {
  if (::sched_getscheduler(0) != SCHED_OTHER) return;  // somebody has decided otherwise
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_BATCH, &none);
  const int nice = ::getpriority(PRIO_PROCESS, 0);
  ::setpriority(PRIO_PROCESS, 0, nice + 5);  // on Linux: of this thread alone
}

}  // namespace lockstep
