#include "launch/caught_signals.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "core/unique_fd.h"
#include "launch/descendants.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// "SigCgt:\t0000000000000200"; 0 where it cannot be read.
std::uint64_t mask_of(const std::string& status_file, const std::string& name) {
  std::ifstream file(status_file);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name + ":\t")) continue;
    std::uint64_t mask = 0;
    std::from_chars(line.data() + name.size() + 2, line.data() + line.size(), mask, 16);
    return mask;
  }
  return 0;
}

bool every_thread_blocks(const std::string& folder, std::uint64_t bit) {
  std::error_code error;
  bool any = false;
  for (const auto& thread : std::filesystem::directory_iterator(folder + "/task", error)) {
    if ((mask_of(thread.path().string() + "/status", "SigBlk") & bit) == 0) return false;
    any = true;
  }
  return any && !error;
}

}  // namespace

bool catches_signal(pid_t pid, int number, const std::string& proc) {
  const std::string folder = concat(proc, "/", pid);
  const std::uint64_t bit = std::uint64_t{1} << (number - 1);
  return (mask_of(folder + "/status", "SigCgt") & bit) != 0 || every_thread_blocks(folder, bit);
}

int signal_who_catches(pid_t leader, int number) {
  int count = 0;
  const auto send = [&](pid_t pid) {
    // Opened first: what is looked at and what gets the signal is the same process then.
    const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!process || !catches_signal(pid, number)) return;
    if (::syscall(SYS_pidfd_send_signal, process.get(), number, nullptr, 0) == 0) ++count;
  };
  send(leader);
  for (const ProcessInfo& process : descendants_of(leader)) {
    if (process.group == leader && !process.ended()) send(process.pid);
  }
  return count;
}

}  // namespace lockstep
