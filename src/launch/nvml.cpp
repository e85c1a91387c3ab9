#include "launch/nvml.h"

#include <dlfcn.h>
#include <cstdio>
#include <memory>

#include "lockstep/error.h"

namespace lockstep {

std::string pci_address(unsigned domain, unsigned bus, unsigned device) {
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", domain, bus, device);
  return text;
}

namespace {

using Device = struct DeviceTag*;
using NvmlStatus = int;
constexpr NvmlStatus kSuccess = 0;
constexpr std::size_t kUuidSize = 96;  // NVML_DEVICE_UUID_V2_BUFFER_SIZE

// nvmlPciInfo_t of version 3. Declared here because the header comes with CUDA's toolkit, which is
// not needed to build a launcher.
struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned device_id;
  unsigned subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

using Library = std::unique_ptr<void, int (*)(void*)>;

// The functions that are called. A driver older than 2018 lacks some; the MIG ones are optional.
struct Functions {
  NvmlStatus (*init)() = nullptr;
  NvmlStatus (*shutdown)() = nullptr;
  const char* (*error_string)(NvmlStatus) = nullptr;
  NvmlStatus (*device_count)(unsigned*) = nullptr;
  NvmlStatus (*device)(unsigned, Device*) = nullptr;
  NvmlStatus (*uuid)(Device, char*, unsigned) = nullptr;
  NvmlStatus (*pci_info)(Device, PciInfo*) = nullptr;
  NvmlStatus (*mig_count)(Device, unsigned*) = nullptr;
  NvmlStatus (*mig_device)(Device, unsigned, Device*) = nullptr;
};

template <typename Function>
bool find(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    missing = name;
  }
  return function != nullptr;
}

// False if a function that must be there is not; its name is then in `missing`.
bool find_all(void* library, Functions& nvml, std::string& missing) {
  std::string ignored;
  find(library, "nvmlDeviceGetMaxMigDeviceCount", nvml.mig_count, ignored);
  find(library, "nvmlDeviceGetMigDeviceHandleByIndex", nvml.mig_device, ignored);
  return find(library, "nvmlInit_v2", nvml.init, missing) &&
         find(library, "nvmlShutdown", nvml.shutdown, missing) &&
         find(library, "nvmlErrorString", nvml.error_string, missing) &&
         find(library, "nvmlDeviceGetCount_v2", nvml.device_count, missing) &&
         find(library, "nvmlDeviceGetHandleByIndex_v2", nvml.device, missing) &&
         find(library, "nvmlDeviceGetUUID", nvml.uuid, missing) &&
         find(library, "nvmlDeviceGetPciInfo_v3", nvml.pci_info, missing);
}

std::string uuid_of(const Functions& nvml, Device device) {
  char text[kUuidSize] = {};
  return nvml.uuid(device, text, sizeof text) == kSuccess ? text : "";
}

std::vector<std::string> mig_uuids_of(const Functions& nvml, Device device) {
  std::vector<std::string> uuids;
  unsigned count = 0;
  if (nvml.mig_count == nullptr || nvml.mig_device == nullptr ||
      nvml.mig_count(device, &count) != kSuccess) {
    return uuids;
  }
  for (unsigned index = 0; index < count; ++index) {
    Device part = nullptr;
    // Numbers that no part has are reported as errors.
    if (nvml.mig_device(device, index, &part) == kSuccess) {
      uuids.push_back(uuid_of(nvml, part));
    }
  }
  return uuids;
}

// Only between init() and shutdown(). Returns the first status that is an error.
NvmlStatus read_gpus(const Functions& nvml, std::vector<Gpu>& gpus) {
  unsigned count = 0;
  if (const NvmlStatus status = nvml.device_count(&count); status != kSuccess) {
    return status;
  }
  for (unsigned index = 0; index < count; ++index) {
    Device device = nullptr;
    PciInfo pci = {};
    if (const NvmlStatus status = nvml.device(index, &device); status != kSuccess) {
      return status;
    }
    if (const NvmlStatus status = nvml.pci_info(device, &pci); status != kSuccess) {
      return status;
    }
    gpus.push_back({.uuid = uuid_of(nvml, device),
                    .pci_address = pci_address(pci.domain, pci.bus, pci.device),
                    .mig_uuids = mig_uuids_of(nvml, device)});
  }
  return kSuccess;
}

}  // namespace

GpuList list_nvidia_gpus(const std::string& library_name) {
  GpuList list;
  const Library library(::dlopen(library_name.c_str(), RTLD_NOW | RTLD_LOCAL), &::dlclose);
  if (!library) {
    list.problem = concat("NVIDIA's driver is not installed (", library_name, " cannot be loaded)");
    return list;
  }
  Functions nvml;
  std::string missing;
  if (!find_all(library.get(), nvml, missing)) {
    list.problem = concat("NVIDIA's driver is too old: ", library_name, " has no ", missing);
    return list;
  }
  if (const NvmlStatus status = nvml.init(); status != kSuccess) {
    list.problem =
        concat("NVIDIA's driver does not answer (NVML: ", nvml.error_string(status), ")");
    return list;
  }
  const NvmlStatus status = read_gpus(nvml, list.gpus);
  if (status != kSuccess) {
    list.problem = concat("NVIDIA's driver fails (NVML: ", nvml.error_string(status), ")");
    list.gpus.clear();
  } else if (list.gpus.empty()) {
    list.problem = "NVIDIA's driver knows of none";
  }
  nvml.shutdown();
  return list;
}

}  // namespace lockstep
