#pragma once

#include <sys/types.h>
#include <optional>
#include <string>

namespace lockstep {

/// Who holds a TCP port of this machine.
struct PortOwner {
  pid_t pid = 0;        // 0: a process that this user may not look into, or of another container
  std::string command;  // its command line, shortened; empty where the pid is 0
  std::string program;  // as program_of() says
  uid_t uid = 0;

  /// "process 4711 (python3 train.py)", or the user where the process cannot be known.
  std::string describe() const;
};

/// The file name of what a process executes, without the kernel's word for one that was replaced
/// since. Empty where that may not be known. `process` is its folder, such as /proc/self.
std::string program_of(const std::string& process);

/// std::nullopt if nobody holds the port any more, or only the kernel does: a connection that was
/// closed lingers for a minute. `proc` is where the kernel's process files are.
///
/// Reads the descriptors of every process that it may: milliseconds, for an error message only.
std::optional<PortOwner> port_owner(int port, const std::string& proc = "/proc");

}  // namespace lockstep
