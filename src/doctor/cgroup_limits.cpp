#include "doctor/cgroup_limits.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Version 1 writes a huge number where there is no limit.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;

std::optional<std::string> text_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<double> number_in(const fs::path& path) {
  const auto text = text_of(path);
  double number = 0;
  if (!text || !(std::istringstream(*text) >> number)) return std::nullopt;
  return number;
}

template <typename Value>
void take_smaller(std::optional<Value>& limit, Value value) {
  limit = limit ? std::min(*limit, value) : value;
}

void take_memory(CgroupLimits& limits, const fs::path& file) {
  const auto text = text_of(file);
  std::uint64_t bytes = 0;
  if (text && std::istringstream(*text) >> bytes && bytes < kNoLimit) {
    take_smaller(limits.memory_bytes, bytes);
  }
}

// "150000 100000" means one and a half processors; "max 100000" no limit.
void take_cpu_max(CgroupLimits& limits, const fs::path& file) {
  const auto text = text_of(file);
  double quota = 0;
  double period = 0;
  if (text && std::istringstream(*text) >> quota >> period && period > 0) {
    take_smaller(limits.cpus, quota / period);
  }
}

void take_cpu_quota(CgroupLimits& limits, const fs::path& folder) {
  const auto quota = number_in(folder / "cpu.cfs_quota_us");
  const auto period = number_in(folder / "cpu.cfs_period_us");
  if (quota && period && *quota > 0 && *period > 0) take_smaller(limits.cpus, *quota / *period);
}

// A group and those around it, the root first. In a container the inner name may mean nothing.
std::vector<fs::path> folders_of(const fs::path& root, const std::string& group) {
  std::vector<fs::path> folders = {root};
  fs::path folder = root;
  for (const fs::path& part : fs::path(group).relative_path()) {
    if (part == "..") break;
    folder /= part;
    folders.push_back(folder);
  }
  return folders;
}

bool names(const std::string& controllers, const std::string& wanted) {
  std::istringstream list(controllers);
  for (std::string each; std::getline(list, each, ',');) {
    if (each == wanted) return true;
  }
  return false;
}

}  // namespace

CgroupLimits read_cgroup_limits(const CgroupSources& sources) {
  CgroupLimits limits;
  std::ifstream file(sources.membership);
  for (std::string line; std::getline(file, line);) {  // "4:memory:/group", "0::/group"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    const fs::path root(sources.root);
    if (controllers.empty()) {
      for (const fs::path& folder : folders_of(root, group)) {
        take_memory(limits, folder / "memory.max");
        take_cpu_max(limits, folder / "cpu.max");
      }
    }
    if (names(controllers, "memory")) {
      for (const fs::path& folder : folders_of(root / "memory", group)) {
        take_memory(limits, folder / "memory.limit_in_bytes");
      }
    }
    if (names(controllers, "cpu")) {
      for (const fs::path& folder : folders_of(root / "cpu", group)) {
        take_cpu_quota(limits, folder);
      }
    }
  }
  return limits;
}

}  // namespace lockstep
