#pragma once

#include <sys/types.h>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// Logical processors by number.
using CpuSet = std::set<int>;

/// The kernel's notation: "0-2,4,6-7". Throws InvalidArgument for text that is not in it.
CpuSet parse_cpu_list(std::string_view text);
std::string format_cpu_list(const CpuSet& cpus);

/// The processors that this thread may run on, as taskset, a container or a batch system left them.
CpuSet allowed_cpus();

/// A set in the form that the kernel takes, made before a fork, where memory can still be
/// allocated.
using AffinityMask = std::vector<unsigned long>;
AffinityMask affinity_mask(const CpuSet& cpus);

/// Binds a thread (0: the calling one); what it starts later inherits it. False with errno where
/// the kernel refuses. Allocates nothing: a child may call it between fork and exec.
bool set_affinity(pid_t thread, const AffinityMask& mask);

}  // namespace lockstep
