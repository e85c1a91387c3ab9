#include <algorithm>
#include <array>
#include <cstdlib>

#include "doctor/accelerator_facts.h"
#include "launch/option_values.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// The oldest driver for each major version of CUDA, by NVIDIA's table of compatibility.
struct OldestDriver {
  int cuda;
  int driver;
};
constexpr std::array<OldestDriver, 3> kOldestDrivers = {{{11, 450}, {12, 525}, {13, 580}}};

void judge_driver(const AcceleratorFacts& facts, const PythonFacts& python, FindingList& list) {
  const int cuda = std::atoi(python.torch_cuda.c_str());
  const int driver = std::atoi(facts.driver.c_str());
  const auto oldest = std::ranges::find(kOldestDrivers, cuda, &OldestDriver::cuda);
  if (driver == 0 || oldest == kOldestDrivers.end() || driver >= oldest->driver) return;
  list.error("gpu",
             concat("the driver ", facts.driver, " is too old for torch's CUDA ", python.torch_cuda,
                    ", which needs ", oldest->driver),
             "update the driver, or install a torch for an older CUDA");
}

void judge_nccl(const AcceleratorFacts& facts, FindingList& list) {
  if (facts.nccl_library.empty()) {
    list.note("nccl", "no libnccl.so.2 was found: a program has its own inside, or has none",
              "pip install nvidia-nccl-cu12, or add its folder to LD_LIBRARY_PATH");
    return;
  }
  const std::string version =
      facts.nccl_version ? nccl_version_text(*facts.nccl_version) : "of unknown version";
  if (facts.nccl_chosen_by != "torch" && facts.torch_nccl_version &&
      facts.torch_nccl_version != facts.nccl_version) {
    list.warning("nccl",
                 concat(facts.nccl_chosen_by, " puts NCCL ", version, " (", facts.nccl_library,
                        ") before torch's own ", nccl_version_text(*facts.torch_nccl_version)),
                 "take it out unless it is meant: torch was built and tested with its own");
    return;
  }
  list.ok("nccl",
          concat("NCCL ", version, " (", facts.nccl_library, ")",
                 facts.plugin_library.empty() ? ""
                                              : concat(", network plugin ", facts.plugin_library)));
}

}  // namespace

std::string nccl_version_text(int code) {
  // 2.9 and later have two digits for the second number; before, one.
  const int unit = code < 10000 ? 1000 : 10000;
  return concat(code / unit, ".", code % unit / 100, ".", code % 100);
}

void judge_accelerators(const AcceleratorFacts& facts, const PythonFacts& python,
                        FindingList& list) {
  if (facts.gpus == 0) {
    if (facts.nvidia_devices) {
      list.error(
          "gpu", concat("/dev/nvidia0 exists, but no GPU can be used: ", facts.problem),
          "see what nvidia-smi says; in a container use the NVIDIA runtime (--gpus all), and "
          "look at CUDA_VISIBLE_DEVICES");
    } else {
      list.ok("gpu", concat("no GPU: ", facts.problem));
    }
    return;
  }
  list.ok("gpu", concat(facts.gpus, facts.gpus == 1 ? " GPU" : " GPUs",
                        facts.driver.empty() ? "" : concat(", driver ", facts.driver)));
  if (python.has_torch() && python.torch_cuda.empty() && !facts.driver.empty()) {
    list.warning("gpu",
                 concat("torch ", python.torch_version, " was built without CUDA: it uses no GPU"),
                 "install the CUDA wheel of torch");
  }
  judge_driver(facts, python, list);
  judge_nccl(facts, list);
}

}  // namespace lockstep
