#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "core/unique_fd.h"

namespace lockstep {

/// Reads the memory of another process that this one may look into.
class ProcessMemory {
 public:
  explicit ProcessMemory(pid_t pid)
      : fd_(::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC)) {}

  /// How much of it could be read.
  std::size_t read(std::uint64_t address, void* buffer, std::size_t bytes) const {
    const ssize_t count = ::pread(fd_.get(), buffer, bytes, static_cast<off_t>(address));
    return count < 0 ? 0 : static_cast<std::size_t>(count);
  }

  template <typename T>
  std::optional<T> read(std::uint64_t address) const {
    T value;
    if (read(address, &value, sizeof(value)) != sizeof(value)) return std::nullopt;
    return value;
  }

 private:
  UniqueFd fd_;
};

}  // namespace lockstep
