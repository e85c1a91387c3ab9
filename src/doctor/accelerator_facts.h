#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/finding.h"
#include "doctor/network_facts.h"
#include "doctor/python_facts.h"
#include "lockstep/environment.h"

namespace lockstep {

/// A version of NCCL in words: 22304 is "2.23.4", 2708 is "2.7.8".
std::string nccl_version_text(int code);

struct AcceleratorFacts {
  int gpus = 0;                 // that workers will see
  std::string problem;          // why none
  bool nvidia_devices = false;  // /dev/nvidia0 exists
  std::string driver;           // of NVIDIA: "550.54.15"; empty: none is loaded

  std::string nccl_library;    // the file that programs will load; empty: none was found
  std::string nccl_chosen_by;  // "LD_PRELOAD", "LD_LIBRARY_PATH", "torch", "the system"
  std::optional<int> nccl_version;
  std::optional<int> torch_nccl_version;  // of the one that comes with torch

  std::string wanted_plugin;   // the name of the network plugin that NCCL looks for; empty: none
  std::string plugin_library;  // the file; empty: it was not found
  std::string plugin_problem;  // why
};

AcceleratorFacts read_accelerators(const Environment& environment, const PythonFacts& python,
                                   const DeviceFolders& folders = {});

void judge_accelerators(const AcceleratorFacts& facts, const PythonFacts& python,
                        FindingList& list);

/// What NCCL_*, GLOO_* and FI_* variables say that cannot be true here.
void judge_nccl_environment(const Environment& environment, const AcceleratorFacts& facts,
                            const NetworkFacts& network, bool several_nodes, FindingList& list);

}  // namespace lockstep
