#include "launch/device_count.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/parse_integer.h"
#include "launch/cpu_set.h"
#include "launch/kfd.h"
#include "launch/nvml.h"
#include "launch/visible_devices.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Devices that PyTorch knows by name and that only its own libraries can count.
constexpr std::array<std::string_view, 9> kOtherDevices = {
    "xpu", "mps", "hpu", "mtia", "xla", "npu", "mlu", "musa", "privateuseone"};

void hide(GpuList& list, const Environment& environment, const char* name) {
  const auto value = environment.get(name);
  if (!value || list.gpus.empty()) {
    return;
  }
  const std::size_t before = list.gpus.size();
  list.gpus = visible_devices(list.gpus, *value);
  if (list.gpus.empty()) {
    list.problem = concat("this machine has ", before, ", but ", name, " is '", *value, "'");
  }
}

int parse_count(const std::string& word) {
  const auto number = parse_integer<int>(word);
  if (!number || *number < 1) {
    throw InvalidArgument(
        concat("--nproc-per-node is '", word, "'; it must be a positive number, cpu, gpu or auto"));
  }
  return *number;
}

}  // namespace

GpuList find_gpus(const Environment& environment, const GpuSources& sources) {
  GpuList nvidia = list_nvidia_gpus(sources.nvml_library);
  if (!nvidia.gpus.empty()) {
    hide(nvidia, environment, "CUDA_VISIBLE_DEVICES");
    return nvidia;
  }
  GpuList amd = list_amd_gpus(sources.sysfs);
  if (amd.gpus.empty()) {
    amd.problem = concat(nvidia.problem, "; ", amd.problem);
    return amd;
  }
  // ROCR takes away first; HIP counts among what is left.
  hide(amd, environment, "ROCR_VISIBLE_DEVICES");
  hide(amd, environment,
       environment.has("HIP_VISIBLE_DEVICES") ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES");
  return amd;
}

int resolve_nproc(const std::string& word, const Environment& environment,
                  const GpuSources& sources) {
  if (word == "cpu") {
    return static_cast<int>(allowed_cpus().size());
  }
  if (word == "gpu" || word == "auto") {
    const GpuList list = find_gpus(environment, sources);
    if (!list.gpus.empty()) {
      return static_cast<int>(list.gpus.size());
    }
    if (word == "auto") {
      return static_cast<int>(allowed_cpus().size());
    }
    throw InvalidArgument(
        concat("--nproc-per-node is 'gpu', but no GPU was found: ", list.problem));
  }
  if (std::find(kOtherDevices.begin(), kOtherDevices.end(), word) != kOtherDevices.end()) {
    throw InvalidArgument(concat("--nproc-per-node is '", word,
                                 "', and such devices cannot be counted without PyTorch; give "
                                 "their number"));
  }
  return parse_count(word);
}

}  // namespace lockstep
