#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

/// Where the kernel says what this process is limited to; tests give folders of their own.
struct CgroupSources {
  std::string membership = "/proc/self/cgroup";
  std::string root = "/sys/fs/cgroup";
};

/// The tightest limits of the cgroups that this process is in, of version 1 or 2.
struct CgroupLimits {
  std::optional<std::uint64_t> memory_bytes;
  std::optional<double> cpus;
};

CgroupLimits read_cgroup_limits(const CgroupSources& sources);

}  // namespace lockstep
