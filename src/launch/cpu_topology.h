#pragma once

#include <string>
#include <vector>

#include "launch/cpu_set.h"

namespace lockstep {

/// How this machine's processors are arranged, as sysfs tells it. Every question reads files: it
/// is asked once, before workers start.
///
/// Functions throw SystemError, naming the file, when sysfs does not say.
class CpuTopology {
 public:
  struct Options {
    std::string sysfs = "/sys";
    CpuSet allowed;  // empty: those of this process
  };

  CpuTopology();
  explicit CpuTopology(Options options);

  const CpuSet& allowed() const { return allowed_; }

  /// NUMA nodes with at least one allowed processor, ascending. A kernel that knows no NUMA has
  /// one node, 0, with all of them.
  std::vector<int> nodes() const;

  /// The allowed processors of a node; empty for a node that has none.
  CpuSet cpus_of_node(int node) const;

  /// The physical package that a processor sits in.
  int socket_of(int cpu) const;

  /// The processors that are threads of the same core, allowed or not.
  CpuSet core_of(int cpu) const;

  /// The processors behind the same last cache, a "core complex", allowed or not. Where sysfs knows
  /// no caches, as in many virtual machines, that is the node's.
  CpuSet core_complex_of(int cpu) const;

  /// The node that a PCI device is attached to. A machine with one node often does not say: 0.
  int node_of_pci_device(const std::string& address) const;

 private:
  CpuSet only_allowed(const CpuSet& cpus) const;
  std::string cpu_folder(int cpu) const;

  std::string sysfs_;
  CpuSet allowed_;
};

}  // namespace lockstep
