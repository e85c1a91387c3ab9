#pragma once

#include <memory>
#include <string>
#include <vector>

namespace lockstep {

struct GpuReading {
  int index = 0;            // NVML's, which is the order of bus addresses
  double utilization = 0;   // percent
  double memory_used = 0;   // bytes
  double memory_total = 0;  // bytes
  double power_watts = 0;
  double temperature = 0;  // degrees Celsius
};

/// NVIDIA's GPUs through the driver's management library, which is loaded if it is there. A machine
/// without it has none. What a GPU does not tell is 0.
class GpuSensors {
 public:
  explicit GpuSensors(const std::string& library = "libnvidia-ml.so.1");
  ~GpuSensors();
  GpuSensors(const GpuSensors&) = delete;
  GpuSensors& operator=(const GpuSensors&) = delete;

  std::vector<GpuReading> read() const;

 private:
  struct Nvml;
  std::unique_ptr<Nvml> nvml_;
};

}  // namespace lockstep
