#include "devices.h"

#include <dlfcn.h>
#include <array>
#include <fstream>
#include <utility>

#include <c10/core/CachingDeviceAllocator.h>

namespace train_llm {
namespace {

constexpr double kGigabyte = 1e9;

// More special names stand first. From the makers' data sheets, without sparsity.
constexpr auto kPeaks = std::to_array<std::pair<std::string_view, double>>({
    {"GB200", 2500e12},       {"B200", 2250e12},      {"B100", 1750e12},
    {"GH200", 989.4e12},      {"H200 NVL", 835e12},   {"H200", 989.4e12},
    {"H100 PCIe", 756e12},    {"H100 NVL", 835e12},   {"H100", 989.4e12},
    {"H800", 989.4e12},       {"H20", 148e12},        {"A100", 312e12},
    {"A800", 312e12},         {"L40S", 362e12},       {"L40", 181e12},
    {"L4", 121e12},           {"A40", 149.7e12},      {"A30", 165e12},
    {"A10G", 70e12},          {"A10", 125e12},        {"RTX A6000", 154.8e12},
    {"RTX 6000 Ada", 364e12}, {"RTX 5090", 209.5e12}, {"RTX 4090", 165.2e12},
    {"RTX 3090", 71e12},      {"V100", 125e12},       {"T4", 65e12},
    {"MI300X", 1307e12},      {"MI250", 181e12},
});

// "VmRSS:     123456 kB"
double status_value(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == key && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace

// Through the driver's C interface, so that a build without CUDA's headers knows, too.
std::string device_name(c10::Device device) {
  if (!device.is_cuda()) return {};
  void* driver = ::dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver == nullptr) return {};
  using GetDevice = int (*)(int* device, int ordinal);
  using GetName = int (*)(char* name, int length, int device);
  const auto get = reinterpret_cast<GetDevice>(::dlsym(driver, "cuDeviceGet"));
  const auto name_of = reinterpret_cast<GetName>(::dlsym(driver, "cuDeviceGetName"));
  std::array<char, 256> name{};
  int number = 0;
  const bool known = get != nullptr && name_of != nullptr && get(&number, device.index()) == 0 &&
                     name_of(name.data(), static_cast<int>(name.size()), number) == 0;
  ::dlclose(driver);
  return known ? name.data() : "";
}

std::optional<double> peak_flops(std::string_view device_name) {
  for (const auto& [name, peak] : kPeaks) {
    const std::size_t at = device_name.find(name);
    if (at == std::string_view::npos) continue;
    const std::string_view rest = device_name.substr(at + name.size());
    const bool goes_on = !rest.empty() && rest[0] >= '0' && rest[0] <= '9';  // "A40" in "A4000"
    if (!goes_on) return peak;
  }
  return std::nullopt;
}

std::map<std::string, double> memory_in_use(c10::Device device) {
  std::map<std::string, double> memory = {{"mem/host_gb", status_value("VmRSS:") / kGigabyte},
                                          {"mem/host_peak_gb", status_value("VmHWM:") / kGigabyte}};
  if (device.is_cpu()) return memory;
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(device.type());
  const auto stats = allocator->getDeviceStats(device.index());
  const auto& bytes = stats.allocated_bytes[0];  // of all pools
  memory["mem/device_gb"] = static_cast<double>(bytes.current) / kGigabyte;
  memory["mem/device_peak_gb"] = static_cast<double>(bytes.peak) / kGigabyte;
  allocator->resetPeakStats(device.index());
  return memory;
}

}  // namespace train_llm
