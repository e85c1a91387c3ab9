#include "track/system_sampler.h"

#include "lockstep/tracker.h"
#include "track/background_thread.h"

namespace lockstep {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr double kMegabyte = 1024.0 * 1024.0;

// A counter that has begun anew (an interface that was taken away) gives no negative rate.
double rate(std::uint64_t before, std::uint64_t now, double seconds) {
  return now > before && seconds > 0 ? static_cast<double>(now - before) / seconds : 0;
}

double share(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

}  // namespace

json process_sample(const ProcessCounters& before, const ProcessCounters& now, double seconds) {
  return {{"proc.cpu", share(now.cpu_seconds - before.cpu_seconds, seconds)},
          {"proc.cpu.threads", now.threads},
          {"proc.memory.rssMB", static_cast<double>(now.resident) / kMegabyte},
          {"proc.disk.read_MBps", rate(before.read, now.read, seconds) / kMegabyte},
          {"proc.disk.write_MBps", rate(before.written, now.written, seconds) / kMegabyte}};
}

json host_sample(const HostCounters& before, const HostCounters& now, double seconds) {
  const auto used = static_cast<double>(now.memory_total - now.memory_available);
  return {
      {"cpu", share(now.busy_seconds - before.busy_seconds, now.all_seconds - before.all_seconds)},
      {"load", now.load},
      {"memory_percent", share(used, static_cast<double>(now.memory_total))},
      {"memory_usedMB", used / kMegabyte},
      {"network.recv_MBps", rate(before.received, now.received, seconds) / kMegabyte},
      {"network.sent_MBps", rate(before.sent, now.sent, seconds) / kMegabyte},
      {"disk.read_MBps", rate(before.disk_read, now.disk_read, seconds) / kMegabyte},
      {"disk.write_MBps", rate(before.disk_written, now.disk_written, seconds) / kMegabyte}};
}

json gpu_sample(const std::vector<GpuReading>& gpus) {
  json values = json::object();
  for (const GpuReading& gpu : gpus) {
    const std::string name = "gpu." + std::to_string(gpu.index) + ".";
    values[name + "gpu"] = gpu.utilization;
    values[name + "memoryAllocated"] = share(gpu.memory_used, gpu.memory_total);
    values[name + "memoryAllocatedBytes"] = gpu.memory_used;
    values[name + "powerWatts"] = gpu.power_watts;
    values[name + "temp"] = gpu.temperature;
  }
  return values;
}

SystemSampler::SystemSampler(Tracker& tracker, const Options& options)
    : tracker_(tracker), options_(options), thread_([this] { run(); }) {}

SystemSampler::~SystemSampler() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void SystemSampler::run() {
  work_in_background();
  std::optional<GpuSensors> sensors;
  if (options_.host) sensors.emplace();
  ProcessCounters process = read_process_counters();
  HostCounters host = options_.host ? read_host_counters() : HostCounters{};
  auto time = Clock::now();
  for (std::unique_lock lock(mutex_);;) {
    if (wake_.wait_for(lock, options_.every, [this] { return ending_; })) return;
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - time).count();
    const ProcessCounters process_now = read_process_counters();
    json values = process_sample(process, process_now, seconds);
    process = process_now;
    if (options_.host) {
      const HostCounters host_now = read_host_counters();
      values.update(host_sample(host, host_now, seconds));
      values.update(gpu_sample(sensors->read()));
      host = host_now;
    }
    time = now;
    tracker_.system(std::move(values));
  }
}

}  // namespace lockstep
