// Stands for NVIDIA's management library. FAKE_NVML says what machine it pretends:
// a number of GPUs, "broken" (the driver does not answer), or "mig" (one GPU in two parts).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kDriverNotLoaded = 9;
constexpr int kInvalidArgument = 2;

std::string machine() {
  const char* text = std::getenv("FAKE_NVML");
  return text == nullptr ? "0" : text;
}

unsigned gpu_count() {
  return machine() == "mig" ? 1 : std::strtoul(machine().c_str(), nullptr, 10);
}

// A device is its number + 1, a part of GPU 0 its number + 101.
unsigned number_of(void* device) {
  return static_cast<unsigned>(reinterpret_cast<std::size_t>(device));
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return machine() == "broken" ? kDriverNotLoaded : 0;
}

int nvmlShutdown() {
  return 0;
}

const char* nvmlErrorString(int status) {
  return status == kDriverNotLoaded ? "Driver Not Loaded" : "Invalid Argument";
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = gpu_count();
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(std::size_t{index} + 1);
  return index < gpu_count() ? 0 : kInvalidArgument;
}

int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  const unsigned number = number_of(device);
  if (number > 100) {
    std::snprintf(text, size, "MIG-part%u", number - 101);
  } else {
    std::snprintf(text, size, "GPU-%02x00-uuid", 0xa0 + number - 1);
  }
  return 0;
}

int nvmlDeviceGetPciInfo_v3(void* device, void* info) {
  // Domain, bus and device follow a text of 16 bytes.
  const unsigned place[3] = {1, 0x10 + number_of(device) - 1, 0};
  std::memset(info, 0, 68);
  std::memcpy(static_cast<char*>(info) + 16, place, sizeof place);
  return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* count) {
  *count = machine() == "mig" ? 7 : 0;
  return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void*, unsigned index, void** device) {
  *device = reinterpret_cast<void*>(std::size_t{index} + 101);
  return index < 2 ? 0 : kInvalidArgument;
}

}  // extern "C"
