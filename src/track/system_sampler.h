#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "track/gpu_sensors.h"
#include "track/proc_files.h"

namespace lockstep {

class Tracker;

/// Makes one sample of two readings: rates are over the time between them. Names and units are
/// W&B's where it has one, so that its charts are found (docs/tracking.md).
nlohmann::json process_sample(const ProcessCounters& before, const ProcessCounters& now,
                              double seconds);
nlohmann::json host_sample(const HostCounters& before, const HostCounters& now, double seconds);
nlohmann::json gpu_sample(const std::vector<GpuReading>& gpus);

/// Samples the process and, where it is told to, the host and its GPUs, until it is destroyed.
class SystemSampler {
 public:
  struct Options {
    std::chrono::milliseconds every{10'000};
    bool host = false;  // one process of each host does it
  };
  /// The tracker must outlive it.
  SystemSampler(Tracker& tracker, const Options& options);
  ~SystemSampler();

 private:
  void run();

  Tracker& tracker_;
  Options options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace lockstep
