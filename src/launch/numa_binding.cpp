#include "launch/numa_binding.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// The NUMA node of every place: of each GPU, and of ranks beyond them.
std::vector<int> node_of_places(int local_world_size, const std::vector<Gpu>& gpus,
                                const CpuTopology& topology) {
  std::vector<int> choices;
  for (const Gpu& gpu : gpus) {
    choices.push_back(topology.node_of_pci_device(gpu.pci_address));
  }
  if (choices.empty()) {
    choices = topology.nodes();
  }
  const std::size_t places = std::max<std::size_t>(local_world_size, gpus.size());
  std::vector<int> nodes;
  for (std::size_t place = 0; place < places; ++place) {
    nodes.push_back(choices[place % choices.size()]);
  }
  return nodes;
}

// Processors in groups, by the lowest of each group.
std::map<int, CpuSet> group(const CpuSet& cpus, const CpuTopology& topology,
                            CpuSet (CpuTopology::*group_of)(int) const) {
  std::map<int, CpuSet> groups;
  for (const int cpu : cpus) {
    groups[*(topology.*group_of)(cpu).begin()].insert(cpu);
  }
  return groups;
}

CpuSet cpus_of_socket(int node, const CpuTopology& topology) {
  const int socket = topology.socket_of(*topology.cpus_of_node(node).begin());
  CpuSet cpus;
  for (const int each : topology.nodes()) {
    const CpuSet candidates = topology.cpus_of_node(each);
    if (topology.socket_of(*candidates.begin()) == socket) {
      cpus.insert(candidates.begin(), candidates.end());
    }
  }
  return cpus;
}

// A place on a NUMA node, among those that share it.
struct Share {
  int node;
  std::size_t index;
  std::size_t count;
};

CpuSet exclusive_share(const Share& share, const CpuTopology& topology) {
  const auto cores = group(topology.cpus_of_node(share.node), topology, &CpuTopology::core_of);
  if (cores.size() < share.count) {
    throw InvalidArgument(concat(
        "--numa-binding is 'exclusive', but ", share.count, " ranks or GPUs share the ",
        cores.size(), " usable cores of NUMA node ", share.node, "; use 'node', or fewer ranks"));
  }
  const std::size_t each = cores.size() / share.count;
  const std::size_t more = cores.size() % share.count;
  const std::size_t begin = share.index * each + std::min(share.index, more);
  const std::size_t size = each + (share.index < more ? 1 : 0);
  CpuSet cpus;
  auto core = std::next(cores.begin(), static_cast<std::ptrdiff_t>(begin));
  for (std::size_t taken = 0; taken < size; ++taken, ++core) {
    cpus.insert(core->second.begin(), core->second.end());
  }
  return cpus;
}

CpuSet core_complex(const Share& share, const CpuTopology& topology) {
  const auto groups =
      group(topology.cpus_of_node(share.node), topology, &CpuTopology::core_complex_of);
  std::vector<CpuSet> complexes;
  for (const auto& [lowest, cpus] : groups) {
    complexes.push_back(cpus);
  }
  std::stable_sort(complexes.begin(), complexes.end(), [](const CpuSet& left, const CpuSet& right) {
    return left.size() > right.size();
  });
  return complexes[share.index % complexes.size()];
}

CpuSet cpus_of(NumaBinding binding, const Share& share, const CpuTopology& topology) {
  switch (binding) {
    case NumaBinding::node:
      return topology.cpus_of_node(share.node);
    case NumaBinding::socket:
      return cpus_of_socket(share.node, topology);
    case NumaBinding::exclusive:
      return exclusive_share(share, topology);
    case NumaBinding::core_complex:
      return core_complex(share, topology);
  }
  return {};
}

}  // namespace

const char* to_string(NumaBinding binding) {
  switch (binding) {
    case NumaBinding::node:
      return "node";
    case NumaBinding::socket:
      return "socket";
    case NumaBinding::exclusive:
      return "exclusive";
    case NumaBinding::core_complex:
      return "core-complex";
  }
  return "unknown";
}

std::vector<CpuSet> bind_ranks(NumaBinding binding, int local_world_size,
                               const std::vector<Gpu>& gpus, const CpuTopology& topology) {
  const std::vector<int> nodes = node_of_places(local_world_size, gpus, topology);
  std::vector<CpuSet> result;
  for (int rank = 0; rank < local_world_size; ++rank) {
    const int node = nodes[rank];
    if (topology.cpus_of_node(node).empty()) {
      throw InvalidArgument(concat("--numa-binding is '", to_string(binding), "', but local rank ",
                                   rank, " belongs to NUMA node ", node,
                                   ", none of whose processors may be used here (allowed: ",
                                   format_cpu_list(topology.allowed()), ")"));
    }
    const auto index =
        static_cast<std::size_t>(std::count(nodes.begin(), nodes.begin() + rank, node));
    const auto count = static_cast<std::size_t>(std::count(nodes.begin(), nodes.end(), node));
    result.push_back(cpus_of(binding, {.node = node, .index = index, .count = count}, topology));
  }
  return result;
}

}  // namespace lockstep
