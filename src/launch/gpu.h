#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// A GPU as the launcher knows it, without CUDA or libtorch.
struct Gpu {
  std::string uuid;                    // "GPU-8f1c..."; empty where the driver gives none
  std::string pci_address;             // as sysfs writes it: "0000:3b:00.0"
  std::vector<std::string> mig_uuids;  // of the parts it is divided into: "MIG-..."

  bool operator==(const Gpu&) const = default;
};

/// What a search for GPUs found. Where it found none, `problem` says why, in words that can follow
/// "no GPU was found: ".
struct GpuList {
  std::vector<Gpu> gpus;
  std::string problem;
};

/// A bus address as sysfs writes it.
std::string pci_address(unsigned domain, unsigned bus, unsigned device);

}  // namespace lockstep
