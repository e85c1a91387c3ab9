#include <array>
#include <cmath>
#include <cstdio>

#include "doctor/system_facts.h"
#include "launch/option_values.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kMebi = std::uint64_t{1} << 20;
constexpr std::uint64_t kGibi = std::uint64_t{1} << 30;
constexpr std::int64_t kYear2024 = 1704067200;  // no clock of a machine that runs this is behind it

std::string in_words(const std::optional<std::uint64_t>& limit) {
  return limit ? std::to_string(*limit) : "unlimited";
}

void judge_clock(const SystemFacts& facts, FindingList& list) {
  if (facts.wall_seconds < kYear2024) {
    list.error(
        "clock", concat("the clock stands at ", facts.wall_seconds, " s after 1970"),
        "set it: certificates and file times are wrong otherwise (timedatectl set-ntp true)");
  } else if (!facts.clock_synchronized) {
    list.warning("clock", "nothing keeps the clock in time (NTP, PTP)",
                 "start chronyd or systemd-timesyncd: timedatectl set-ntp true; in a virtual "
                 "machine or container, on its host");
  } else {
    list.ok("clock", "the clock is kept in time");
  }
}

void judge_limits(const SystemFacts& facts, const SystemQuestions& questions, FindingList& list) {
  constexpr std::uint64_t kFewFiles = 4096;
  constexpr std::uint64_t kFewProcesses = 4096;
  bool good = true;
  if (facts.open_files && *facts.open_files < kFewFiles) {
    good = false;
    const bool can_raise = !facts.most_open_files || *facts.most_open_files >= kFewFiles;
    list.warning(
        "limits",
        concat("a process may open ", *facts.open_files,
               " files; each peer, data file and loader process needs some"),
        can_raise ? concat("ulimit -n ", facts.most_open_files ? std::min<std::uint64_t>(
                                                                     *facts.most_open_files, 65536)
                                                               : 65536)
                  : "raise nofile in /etc/security/limits.d, or LimitNOFILE of the service");
  }
  if (facts.processes && *facts.processes < kFewProcesses) {
    good = false;
    list.warning("limits",
                 concat("this user may have ", *facts.processes, " processes and threads"),
                 "ulimit -u 65536, or raise nproc in /etc/security/limits.d");
  }
  if (questions.has_infiniband && facts.locked_bytes) {
    good = false;
    list.error("limits",
               concat("a process may lock ", in_bytes(*facts.locked_bytes),
                      " of memory; InfiniBand and RoCE need all of their buffers locked"),
               "ulimit -l unlimited: memlock in /etc/security/limits.d, LimitMEMLOCK=infinity of "
               "slurmd, or docker run --ulimit memlock=-1");
  }
  if (good) {
    list.ok("limits", concat("open files ", in_words(facts.open_files), ", processes ",
                             in_words(facts.processes), ", locked memory ",
                             facts.locked_bytes ? in_bytes(*facts.locked_bytes) : "unlimited"));
  }
}

void judge_shared_memory(const DiskFacts& shm, FindingList& list) {
  const std::string cure =
      "docker run --ipc=host or --shm-size=16g; in Kubernetes an emptyDir with medium Memory at "
      "/dev/shm; elsewhere mount -o remount,size=50% /dev/shm, and remove what is left there";
  if (!shm.problem.empty()) {
    list.error("shared memory", concat("/dev/shm cannot be used: ", shm.problem), cure);
  } else if (shm.free_bytes < 16 * kMebi) {
    list.error("shared memory",
               concat(in_bytes(shm.free_bytes), " of ", in_bytes(shm.total_bytes),
                      " are free in /dev/shm; ranks that share it die of SIGBUS when it is full"),
               cure);
  } else if (shm.free_bytes < kGibi) {
    list.warning("shared memory",
                 concat(in_bytes(shm.free_bytes), " of ", in_bytes(shm.total_bytes),
                        " are free in /dev/shm; NCCL and data loaders may need more"),
                 cure);
  } else {
    list.ok("shared memory", concat(in_bytes(shm.free_bytes), " of ", in_bytes(shm.total_bytes),
                                    " are free in /dev/shm"));
  }
}

void judge_disk(const DiskFacts& disk, FindingList& list) {
  const std::string place = concat(disk.path, " (", disk.use, ")");
  const bool few_files =
      disk.total_files != 0 && disk.free_files < 1000;  // some file systems have no such number
  if (!disk.problem.empty()) {
    list.error("disk", concat("nothing can be written to ", place, ": ", disk.problem),
               "make it writable, or choose another (TMPDIR, --run-dir)");
  } else if (disk.free_bytes < 100 * kMebi || few_files) {
    list.error("disk",
               concat(place, " is full: ", in_bytes(disk.free_bytes), " and ", disk.free_files,
                      " files are left"),
               "remove something, or choose another place (TMPDIR, --run-dir)");
  } else if (disk.free_bytes < kGibi) {
    list.warning("disk", concat(in_bytes(disk.free_bytes), " are left in ", place),
                 "remove something, or choose another place (TMPDIR, --run-dir)");
  } else {
    list.ok("disk", concat(in_bytes(disk.free_bytes), " are free in ", place));
  }
}

void judge_cgroup(const SystemFacts& facts, FindingList& list) {
  bool good = true;
  if (facts.memory_limit && *facts.memory_limit < 2 * kGibi) {
    good = false;
    list.warning(
        "memory",
        concat("the cgroup's limit is ", in_bytes(*facts.memory_limit), " of the machine's ",
               in_bytes(facts.memory_bytes), "; a rank beyond it is killed by SIGKILL"),
        "ask for more: sbatch --mem, qsub -l mem, resources.limits.memory");
  }
  if (facts.cpu_limit && *facts.cpu_limit + 0.01 < facts.cpus) {
    good = false;
    list.warning("processors",
                 concat(facts.cpus, " processors are visible, but the cgroup gives the time of ",
                        *facts.cpu_limit, "; threads beyond that are stopped in turn"),
                 concat("ask for more, or OMP_NUM_THREADS=",
                        std::max(1, static_cast<int>(std::floor(*facts.cpu_limit)))));
  }
  if (good) {
    list.ok("memory", concat(in_bytes(facts.memory_limit.value_or(facts.memory_bytes)), " and ",
                             facts.cpus, facts.cpus == 1 ? " processor" : " processors"));
  }
}

void judge_threads(const SystemFacts& facts, int workers, FindingList& list) {
  if (!facts.omp_num_threads) return;  // lockstep run sets 1, and says so
  const auto threads = parse_python_int(*facts.omp_num_threads);
  if (!threads || *threads < 1) {
    list.error("threads", concat("OMP_NUM_THREADS is '", *facts.omp_num_threads, "'"),
               "give a number of at least 1, or leave it out");
  } else if (static_cast<std::int64_t>(*threads) * workers > facts.cpus) {
    list.warning("threads",
                 concat("OMP_NUM_THREADS is ", *threads, " with ", workers,
                        workers == 1 ? " worker on " : " workers on ", facts.cpus, " processors"),
                 concat("OMP_NUM_THREADS=", std::max(1, facts.cpus / std::max(1, workers))));
  } else {
    list.ok("threads",
            concat("OMP_NUM_THREADS is ", *threads, " with ", workers,
                   workers == 1 ? " worker on " : " workers on ", facts.cpus, " processors"));
  }
}

void judge_debugging(const SystemFacts& facts, FindingList& list) {
  if (facts.ptrace_scope > 0 && !facts.may_trace_all) {
    list.note("stacks",
              concat("kernel.yama.ptrace_scope is ", facts.ptrace_scope,
                     ": `lockstep stack` can show only what the kernel says of a rank"),
              "sysctl kernel.yama.ptrace_scope=0, or docker run --cap-add SYS_PTRACE");
  } else {
    list.ok("stacks", "`lockstep stack` can look into ranks");
  }
  // A pattern that begins with a bar hands the core to a program, which limits it by itself.
  const bool writes_file = !facts.core_pattern.starts_with("|");
  const bool core_files = !facts.core_bytes || *facts.core_bytes > 0;
  if (writes_file && core_files) {
    list.note("cores",
              concat("a crash writes its memory to the file '", facts.core_pattern, "', up to ",
                     facts.core_bytes ? in_bytes(*facts.core_bytes) : "all of it"),
              "ulimit -c 0 where that is not wanted");
  }
}

}  // namespace

std::string in_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), value < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", value,
                kUnits[unit]);
  return text.data();
}

void judge_system(const SystemFacts& facts, const SystemQuestions& questions, FindingList& list) {
  list.ok("versions", concat("lockstep ", facts.lockstep_version, ", ", facts.kernel, " ",
                             facts.architecture, ", glibc ", facts.glibc));
  judge_clock(facts, list);
  judge_limits(facts, questions, list);
  judge_shared_memory(facts.shared_memory, list);
  for (std::size_t at = 0; at < facts.disks.size(); ++at) {
    const bool said = at > 0 && facts.disks[at].path == facts.disks[0].path;
    if (!said) judge_disk(facts.disks[at], list);
  }
  judge_cgroup(facts, list);
  judge_threads(facts, questions.workers, list);
  judge_debugging(facts, list);
  if (facts.openssl_problem.empty()) {
    list.ok("openssl", "links between nodes can be authenticated");
  } else if (questions.several_nodes) {
    list.error("openssl", facts.openssl_problem, "install OpenSSL (Debian: libssl3)");
  } else {
    list.note("openssl", facts.openssl_problem, "needed for jobs on several nodes only");
  }
}

}  // namespace lockstep
