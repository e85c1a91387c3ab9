#include "track/gpu_sensors.h"

#include <dlfcn.h>

namespace lockstep {
namespace {

template <typename Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace

struct GpuSensors::Nvml {
  // Declared here because NVML's header comes with CUDA's toolkit, which is not needed to build
  // this.
  using Device = void*;
  struct Utilization {
    unsigned gpu, memory;
  };
  struct Memory {
    unsigned long long total, free, used;
  };

  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*device)(unsigned, Device*) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*power)(Device, unsigned*) = nullptr;
  int (*temperature)(Device, int, unsigned*) = nullptr;

  bool find_all() {
    return find_function(library, "nvmlInit_v2", init) &&
           find_function(library, "nvmlShutdown", shutdown) &&
           find_function(library, "nvmlDeviceGetCount_v2", count) &&
           find_function(library, "nvmlDeviceGetHandleByIndex_v2", device) &&
           find_function(library, "nvmlDeviceGetUtilizationRates", utilization) &&
           find_function(library, "nvmlDeviceGetMemoryInfo", memory) &&
           find_function(library, "nvmlDeviceGetPowerUsage", power) &&
           find_function(library, "nvmlDeviceGetTemperature", temperature);
  }
};

GpuSensors::GpuSensors(const std::string& name) {
  void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  auto nvml = std::make_unique<Nvml>();
  nvml->library = library;
  if (nvml->find_all() && nvml->init() == 0) {
    nvml_ = std::move(nvml);
  } else {
    ::dlclose(library);
  }
}

GpuSensors::~GpuSensors() {
  if (!nvml_) return;
  nvml_->shutdown();
  ::dlclose(nvml_->library);
}

std::vector<GpuReading> GpuSensors::read() const {
  std::vector<GpuReading> readings;
  unsigned count = 0;
  if (!nvml_ || nvml_->count(&count) != 0) return readings;
  for (unsigned index = 0; index < count; ++index) {
    Nvml::Device device = nullptr;
    if (nvml_->device(index, &device) != 0) continue;
    Nvml::Utilization busy = {};
    Nvml::Memory memory = {};
    unsigned milliwatts = 0, degrees = 0;
    nvml_->utilization(device, &busy);
    nvml_->memory(device, &memory);
    nvml_->power(device, &milliwatts);
    nvml_->temperature(device, /*of the GPU itself*/ 0, &degrees);
    readings.push_back({.index = static_cast<int>(index),
                        .utilization = static_cast<double>(busy.gpu),
                        .memory_used = static_cast<double>(memory.used),
                        .memory_total = static_cast<double>(memory.total),
                        .power_watts = milliwatts / 1000.0,
                        .temperature = static_cast<double>(degrees)});
  }
  return readings;
}

}  // namespace lockstep
