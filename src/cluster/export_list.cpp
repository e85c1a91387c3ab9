#include "cluster/export_list.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "launch/option_values.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// A star at the end stands for any rest.
constexpr auto kUsual =
    std::to_array<std::string_view>({"PATH",          "PYTHON*",      "LD_LIBRARY_PATH",
                                     "LD_PRELOAD",    "LIBRARY_PATH", "CPATH",
                                     "VIRTUAL_ENV",   "CONDA*",       "MAMBA*",
                                     "NCCL_*",        "GLOO_*",       "OMP_*",
                                     "GOMP_*",        "KMP_*",        "MKL_*",
                                     "OPENBLAS_*",    "CUDA_*",       "CUDNN_*",
                                     "HIP_*",         "ROCM_*",       "RCCL_*",
                                     "HSA_*",         "TORCH*",       "PYTORCH_*",
                                     "FI_*",          "UCX_*",        "EFA_*",
                                     "IBV_*",         "HF_*",         "TRANSFORMERS_*",
                                     "HUGGINGFACE_*", "WANDB_*",      "TOKENIZERS_*",
                                     "LANG",          "LC_*",         "TZ",
                                     "MODULE*",       "LMOD*",        "LOADEDMODULES",
                                     "_LMFILES_",     "BASH_FUNC_*",  "LOCKSTEP_*",
                                     "no_proxy",      "http_proxy",   "https_proxy",
                                     "NO_PROXY",      "HTTP_PROXY",   "HTTPS_PROXY"});

// What tells this machine, session or task from others; another one has its own.
constexpr auto kOfThisMachine = std::to_array<std::string_view>(
    {"HOSTNAME", "HOST",       "SSH_*",      "PWD",         "OLDPWD",     "SHLVL",
     "_",        "DISPLAY",    "XAUTHORITY", "XDG_*",       "DBUS_*",     "TERM*",
     "STY",      "TMUX*",      "WINDOWID",   "TTY",         "SLURM_*",    "SLURMD_*",
     "PBS_*",    "TMPDIR",     "OMPI_*",     "PMIX_*",      "PMI_*",      "PRTE_*",
     "HOME",     "USER",       "LOGNAME",    "MAIL",        "SHELL",      "KUBERNETES_*",
     "RANK",     "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"});

// Of a launcher, and of none of its children on other machines.
constexpr auto kNever = std::to_array<std::string_view>(
    {"LOCKSTEP_SECRET*", "LOCKSTEP_ETCD_PASSWORD", "LOCKSTEP_BRIEF*", "LOCKSTEP_AGENT",
     "LOCKSTEP_RUN_DIR", "TORCHELASTIC_ERROR_FILE"});

bool matches(std::string_view pattern, std::string_view name) {
  return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1))
                                : name == pattern;
}

template <typename Patterns>
bool matches_any(const Patterns& patterns, std::string_view name) {
  return std::ranges::any_of(patterns,
                             [&](std::string_view pattern) { return matches(pattern, name); });
}

void add_matching(Environment::Variables& chosen, const Environment& environment,
                  std::string_view pattern) {
  for (const auto& [name, value] : environment.variables()) {
    if (matches(pattern, name)) chosen[name] = value;
  }
}

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  });
}

}  // namespace

Environment::Variables exported_variables(const Environment& environment, const std::string& list) {
  Environment::Variables chosen;
  for (const std::string_view pattern : kUsual) add_matching(chosen, environment, pattern);
  for (const std::string_view raw : split(list, ',')) {
    const std::string_view item = trim(raw);
    const std::size_t equals = item.find('=');
    if (item.empty()) continue;
    if (item == "NONE") {
      chosen.clear();
    } else if (item == "ALL") {
      for (const auto& [name, value] : environment.variables()) {
        if (!matches_any(kOfThisMachine, name)) chosen[name] = value;
      }
    } else if (equals != std::string_view::npos && is_name(item.substr(0, equals))) {
      chosen[std::string(item.substr(0, equals))] = item.substr(equals + 1);
    } else if (is_name(item) || (item.ends_with('*') && is_name(item.substr(0, item.size() - 1)))) {
      add_matching(chosen, environment, item);
    } else {
      throw InvalidArgument(concat("--export: '", item,
                                   "' is not understood; write NAME, NAME=VALUE, PREFIX*, ALL or "
                                   "NONE, with commas between"));
    }
  }
  std::erase_if(chosen, [](const auto& entry) { return matches_any(kNever, entry.first); });
  return chosen;
}

bool exports_nothing_else(const std::string& list) {
  return std::ranges::any_of(split(list, ','),
                             [](std::string_view item) { return trim(item) == "NONE"; });
}

}  // namespace lockstep
