#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "doctor/finding.h"
#include "lockstep/environment.h"

namespace lockstep {

/// A folder that jobs write to.
struct DiskFacts {
  std::string use;  // "run directories"
  std::string path;
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t free_files = 0;  // inodes; 0 with total_files 0: the file system has no such limit
  std::uint64_t total_files = 0;
  std::string problem;  // why nothing can be written there; empty: it can
};

/// What a machine says about itself, network and accelerators apart. Reading and judging are apart,
/// so that judgements can be tested with any machine.
struct SystemFacts {
  std::string lockstep_version;
  std::string kernel;
  std::string architecture;
  std::string glibc;

  std::int64_t wall_seconds = 0;  // since 1970
  bool clock_synchronized = true;

  // std::nullopt: unlimited
  std::optional<std::uint64_t> open_files;
  std::optional<std::uint64_t> most_open_files;  // the hard limit
  std::optional<std::uint64_t> locked_bytes;
  std::optional<std::uint64_t> processes;
  std::optional<std::uint64_t> core_bytes;

  std::vector<DiskFacts> disks;
  DiskFacts shared_memory;  // /dev/shm

  std::uint64_t memory_bytes = 0;
  std::optional<std::uint64_t> memory_limit;  // of the cgroup
  int cpus = 1;                               // that this process may run on
  std::optional<double> cpu_limit;            // of the cgroup, in processors

  int ptrace_scope = 0;  // Yama's; 0: any process of the same user
  bool may_trace_all = false;
  std::string core_pattern;
  std::string openssl_problem;  // empty: it is there

  std::optional<std::string> omp_num_threads;
};

SystemFacts read_system(const Environment& environment, const std::string& lockstep_version);

struct SystemQuestions {
  bool several_nodes = false;
  bool has_infiniband = false;
  int workers = 1;  // that a job would start on this node
};

void judge_system(const SystemFacts& facts, const SystemQuestions& questions, FindingList& list);

/// "64 MiB", "1.5 GiB".
std::string in_bytes(std::uint64_t bytes);

}  // namespace lockstep
