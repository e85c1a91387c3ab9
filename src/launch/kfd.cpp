#include "launch/kfd.h"

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "core/parse_integer.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// A node of the topology is a processor or a GPU. The file of a GPU that this process may not use,
// as in a container, cannot be read.
std::optional<Gpu> read_node(const fs::path& node) {
  std::map<std::string, std::uint64_t> properties;
  std::ifstream file(node / "properties");
  std::string name;
  std::uint64_t value = 0;
  while (file >> name >> value) {
    properties[name] = value;
  }
  if (properties["simd_count"] == 0) {
    return std::nullopt;
  }
  const auto location = static_cast<unsigned>(properties["location_id"]);
  Gpu gpu;
  gpu.pci_address = pci_address(static_cast<unsigned>(properties["domain"]), location >> 8 & 0xff,
                                location >> 3 & 0x1f);
  if (properties["unique_id"] != 0) {
    char uuid[32];
    std::snprintf(uuid, sizeof uuid, "GPU-%016llx",
                  static_cast<unsigned long long>(properties["unique_id"]));
    gpu.uuid = uuid;
  }
  return gpu;
}

}  // namespace

GpuList list_amd_gpus(const std::string& sysfs) {
  const fs::path nodes = fs::path(sysfs) / "class/kfd/kfd/topology/nodes";
  std::map<int, fs::path> by_number;  // a directory's own order means nothing
  std::error_code error;
  for (fs::directory_iterator entry(nodes, error), end; !error && entry != end;
       entry.increment(error)) {
    if (const auto number = parse_integer<int>(entry->path().filename().string())) {
      by_number[*number] = entry->path();
    }
  }
  GpuList list;
  if (by_number.empty()) {
    list.problem = "AMD's driver is not loaded";
    return list;
  }
  for (const auto& [number, path] : by_number) {
    if (auto gpu = read_node(path)) {
      list.gpus.push_back(std::move(*gpu));
    }
  }
  if (list.gpus.empty()) {
    list.problem = "AMD's driver knows of none that this process may use";
  }
  return list;
}

}  // namespace lockstep
