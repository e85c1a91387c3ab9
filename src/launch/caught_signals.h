#pragma once

#include <sys/types.h>

#include <string>

namespace lockstep {

/// Whether the process has a handler for the signal, or all of its threads block it to wait for it.
/// One that does neither may die of it. False if there is no such process.
bool catches_signal(pid_t pid, int number, const std::string& proc = "/proc");

/// Sends the signal to those of a process group whom it does not end: the leader, and what has come
/// of it, as far as they catch it. How many those are.
int signal_who_catches(pid_t leader, int number);

}  // namespace lockstep
