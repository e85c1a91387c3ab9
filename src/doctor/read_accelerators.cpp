#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "doctor/accelerator_facts.h"
#include "launch/device_count.h"
#include "launch/option_values.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using Library = std::unique_ptr<void, int (*)(void*)>;

Library open_library(const std::string& name) {
  return {::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL), &::dlclose};
}

std::string file_of(const Library& library, const std::string& name) {
  link_map* map = nullptr;
  const bool known = ::dlinfo(library.get(), RTLD_DI_LINKMAP, &map) == 0 && map != nullptr;
  return known && map->l_name[0] != '\0' ? map->l_name : name;
}

std::optional<int> nccl_version_of(const Library& library) {
  const auto get = reinterpret_cast<int (*)(int*)>(::dlsym(library.get(), "ncclGetVersion"));
  int version = 0;
  if (get == nullptr || get(&version) != 0) return std::nullopt;
  return version;
}

struct Candidate {
  std::string name;
  std::string chosen_by;
};

// In the order in which the loader of a worker would find them.
std::vector<Candidate> nccl_candidates(const Environment& environment, const PythonFacts& python) {
  std::vector<Candidate> candidates;
  const std::string preload = environment.get("LD_PRELOAD").value_or("");
  for (const std::string_view words : split(preload, ' ')) {
    for (const std::string_view path : split(words, ':')) {
      if (path.find("libnccl") != std::string_view::npos) {
        candidates.push_back({.name = std::string(path), .chosen_by = "LD_PRELOAD"});
      }
    }
  }
  const std::string folders = environment.get("LD_LIBRARY_PATH").value_or("");
  for (const std::string_view folder : split(folders, ':')) {
    const std::string path = concat(folder, "/libnccl.so.2");
    std::error_code error;
    if (!folder.empty() && fs::exists(path, error)) {
      candidates.push_back({.name = path, .chosen_by = "LD_LIBRARY_PATH"});
    }
  }
  if (!python.nccl_library.empty()) {
    candidates.push_back({.name = python.nccl_library, .chosen_by = "torch"});
  }
  candidates.push_back({.name = "libnccl.so.2", .chosen_by = "the system"});
  return candidates;
}

void find_nccl(const Environment& environment, const PythonFacts& python, AcceleratorFacts& facts) {
  for (const Candidate& candidate : nccl_candidates(environment, python)) {
    const Library library = open_library(candidate.name);
    if (!library) continue;
    const auto version = nccl_version_of(library);
    if (candidate.chosen_by == "torch") facts.torch_nccl_version = version;
    if (!facts.nccl_library.empty()) continue;
    facts.nccl_library = file_of(library, candidate.name);
    facts.nccl_chosen_by = candidate.chosen_by;
    facts.nccl_version = version;
  }
}

void find_plugin(const Environment& environment, AcceleratorFacts& facts) {
  const std::string named = environment.get("NCCL_NET_PLUGIN").value_or("");
  if (named == "none") return;
  const bool is_file = named.find(".so") != std::string::npos;
  facts.wanted_plugin = named.empty() ? "libnccl-net.so"
                        : is_file     ? named
                                      : concat("libnccl-net-", named, ".so");
  const Library library = open_library(facts.wanted_plugin);
  if (library) {
    facts.plugin_library = file_of(library, facts.wanted_plugin);
  } else if (const char* problem = ::dlerror()) {
    facts.plugin_problem = problem;
  }
}

}  // namespace

AcceleratorFacts read_accelerators(const Environment& environment, const PythonFacts& python,
                                   const DeviceFolders& folders) {
  AcceleratorFacts facts;
  const GpuList gpus = find_gpus(environment);
  facts.gpus = static_cast<int>(gpus.gpus.size());
  facts.problem = gpus.problem;
  std::error_code error;
  facts.nvidia_devices = fs::exists(fs::path(folders.dev) / "nvidia0", error);
  std::ifstream(fs::path(folders.sys) / "module/nvidia/version") >> facts.driver;
  // Without GPUs nobody will load these, and they are large.
  if (facts.gpus > 0 || facts.nvidia_devices) {
    find_nccl(environment, python, facts);
    find_plugin(environment, facts);
  }
  return facts;
}

}  // namespace lockstep
