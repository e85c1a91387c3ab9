#include "launch/cpu_topology.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!file) {
    return std::nullopt;
  }
  std::getline(file, line);
  return line;
}

std::string require_line(const fs::path& path) {
  if (auto line = read_line(path)) {
    return *line;
  }
  throw SystemError(concat("cannot read '", path.string(),
                           "', which says how processors are arranged; leave --numa-binding out"));
}

int require_number(const fs::path& path) {
  const std::string line = require_line(path);
  const auto number = parse_integer<int>(line);
  if (!number) {
    throw SystemError(concat("'", path.string(), "' holds '", line, "', which is no number"));
  }
  return *number;
}

CpuSet require_list(const fs::path& path) {
  try {
    return parse_cpu_list(require_line(path));
  } catch (const InvalidArgument& error) {
    throw SystemError(concat("'", path.string(), "': ", error.what()));
  }
}

// The numbers N of the entries "<prefix>N".
std::vector<int> numbered_entries(const fs::path& folder, std::string_view prefix) {
  std::vector<int> numbers;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(prefix)) {
      if (const auto number = parse_integer<int>(std::string_view(name).substr(prefix.size()))) {
        numbers.push_back(*number);
      }
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace

CpuTopology::CpuTopology() : CpuTopology(Options()) {}

CpuTopology::CpuTopology(Options options)
    : sysfs_(std::move(options.sysfs)),
      allowed_(options.allowed.empty() ? allowed_cpus() : std::move(options.allowed)) {}

CpuSet CpuTopology::only_allowed(const CpuSet& cpus) const {
  CpuSet both;
  std::set_intersection(cpus.begin(), cpus.end(), allowed_.begin(), allowed_.end(),
                        std::inserter(both, both.end()));
  return both;
}

std::string CpuTopology::cpu_folder(int cpu) const {
  return concat(sysfs_, "/devices/system/cpu/cpu", cpu);
}

std::vector<int> CpuTopology::nodes() const {
  std::vector<int> nodes = numbered_entries(sysfs_ + "/devices/system/node", "node");
  if (nodes.empty()) {
    return {0};
  }
  // Nodes without processors exist: memory of GPUs, memory on a bus.
  std::erase_if(nodes, [this](int node) { return cpus_of_node(node).empty(); });
  return nodes;
}

CpuSet CpuTopology::cpus_of_node(int node) const {
  const fs::path folder = sysfs_ + "/devices/system/node";
  if (node == 0 && numbered_entries(folder, "node").empty()) {
    return allowed_;
  }
  return only_allowed(require_list(folder / concat("node", node) / "cpulist"));
}

int CpuTopology::socket_of(int cpu) const {
  return require_number(fs::path(cpu_folder(cpu)) / "topology/physical_package_id");
}

CpuSet CpuTopology::core_of(int cpu) const {
  return require_list(fs::path(cpu_folder(cpu)) / "topology/thread_siblings_list");
}

CpuSet CpuTopology::core_complex_of(int cpu) const {
  const fs::path caches = fs::path(cpu_folder(cpu)) / "cache";
  int highest = 0;
  CpuSet sharing;
  for (const int index : numbered_entries(caches, "index")) {
    const fs::path cache = caches / concat("index", index);
    const std::string type = require_line(cache / "type");
    const int level = require_number(cache / "level");
    if ((type == "Unified" || type == "Data") && level > highest) {
      highest = level;
      sharing = require_list(cache / "shared_cpu_list");
    }
  }
  if (!sharing.empty()) {
    return sharing;
  }
  for (const int node : nodes()) {
    CpuSet cpus = cpus_of_node(node);
    if (cpus.contains(cpu)) {
      return cpus;
    }
  }
  return {cpu};
}

int CpuTopology::node_of_pci_device(const std::string& address) const {
  return std::max(require_number(fs::path(sysfs_) / "bus/pci/devices" / address / "numa_node"), 0);
}

}  // namespace lockstep
