#include <gnu/libc-version.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/hmac.h"
#include "doctor/bounded.h"
#include "doctor/cgroup_limits.h"
#include "doctor/system_facts.h"
#include "launch/cpu_set.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kDiskLimit{5000};

std::string first_line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<std::uint64_t> limit_of(int resource, bool hard = false) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return std::nullopt;
  const rlim_t value = hard ? limit.rlim_max : limit.rlim_cur;
  if (value == RLIM_INFINITY) return std::nullopt;
  return value;
}

std::string problem_with_writing(const std::string& folder) {
  std::string path = folder + "/lockstep-doctor-XXXXXX";
  const int fd = ::mkstemp(path.data());
  if (fd < 0) return std::strerror(errno);
  std::string problem;
  if (::write(fd, "lockstep\n", 9) != 9) problem = std::strerror(errno);
  ::close(fd);
  ::unlink(path.c_str());
  return problem;
}

DiskFacts read_disk_now(const std::string& use, const std::string& path) {
  DiskFacts facts{.use = use, .path = path};
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0) {
    facts.problem = std::strerror(errno);
    return facts;
  }
  facts.total_bytes = std::uint64_t{status.f_blocks} * status.f_frsize;
  facts.free_bytes = std::uint64_t{status.f_bavail} * status.f_frsize;
  facts.total_files = status.f_files;
  facts.free_files = status.f_favail;
  facts.problem = problem_with_writing(path);
  return facts;
}

DiskFacts read_disk(const std::string& use, const std::string& path) {
  const auto facts = run_bounded(kDiskLimit, [use, path] { return read_disk_now(use, path); });
  if (facts) return *facts;
  return {.use = use,
          .path = path,
          .problem = concat("it does not answer within ", kDiskLimit.count() / 1000, " s")};
}

std::string temporary_folder(const Environment& environment) {
  const auto given = environment.get("TMPDIR");
  return given && !given->empty() ? *given : "/tmp";
}

bool has_trace_capability() {
  constexpr int kCapSysPtrace = 19;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("CapEff:")) continue;
    const auto bits = std::strtoull(line.c_str() + std::strlen("CapEff:"), nullptr, 16);
    return (bits >> kCapSysPtrace & 1) != 0;
  }
  return false;
}

void read_clock(SystemFacts& facts) {
  facts.wall_seconds = std::time(nullptr);
  timex clock{};
  const int state = ::adjtimex(&clock);
  facts.clock_synchronized = state >= 0 && state != TIME_ERROR && (clock.status & STA_UNSYNC) == 0;
}

void read_limits(SystemFacts& facts) {
  facts.open_files = limit_of(RLIMIT_NOFILE);
  facts.most_open_files = limit_of(RLIMIT_NOFILE, /*hard=*/true);
  facts.locked_bytes = limit_of(RLIMIT_MEMLOCK);
  facts.processes = limit_of(RLIMIT_NPROC);
  facts.core_bytes = limit_of(RLIMIT_CORE);
}

void read_memory(SystemFacts& facts) {
  facts.memory_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  facts.cpus = static_cast<int>(allowed_cpus().size());
  const CgroupLimits limits = read_cgroup_limits({});
  facts.cpu_limit = limits.cpus;
  if (limits.memory_bytes && *limits.memory_bytes < facts.memory_bytes) {
    facts.memory_limit = limits.memory_bytes;
  }
}

std::string problem_with_openssl() {
  try {
    hmac_sha256("key", "data");
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

SystemFacts read_system(const Environment& environment, const std::string& lockstep_version) {
  SystemFacts facts;
  facts.lockstep_version = lockstep_version;
  utsname names{};
  if (::uname(&names) == 0) {
    facts.kernel = concat(names.sysname, " ", names.release);
    facts.architecture = names.machine;
  }
  facts.glibc = ::gnu_get_libc_version();
  read_clock(facts);
  read_limits(facts);
  read_memory(facts);
  facts.disks.push_back(read_disk("run directories", temporary_folder(environment)));
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  facts.disks.push_back(
      error ? DiskFacts{.use = "the working directory", .path = ".", .problem = error.message()}
            : read_disk("the working directory", here));
  facts.shared_memory = read_disk("shared memory", "/dev/shm");
  std::istringstream(first_line_of("/proc/sys/kernel/yama/ptrace_scope")) >> facts.ptrace_scope;
  facts.may_trace_all = has_trace_capability();
  facts.core_pattern = first_line_of("/proc/sys/kernel/core_pattern");
  facts.openssl_problem = problem_with_openssl();
  facts.omp_num_threads = environment.get("OMP_NUM_THREADS");
  return facts;
}

}  // namespace lockstep
