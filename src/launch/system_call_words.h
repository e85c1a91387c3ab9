#pragma once

#include <string>

namespace lockstep {

/// The system call in a line of /proc/PID/syscall, as a reader wants it: "futex (a lock or a
/// condition)", "read of a pipe", "system call 278" for a rare one; empty if the thread is in
/// none or the line is empty because this user may not read it. `descriptors` is the process's
/// folder fd, where descriptors are named.
std::string system_call_in_words(const std::string& line, const std::string& descriptors);

}  // namespace lockstep
