#include "launch/worker_environment.h"

#include "launch/option_values.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr const char* kThreads = "OMP_NUM_THREADS";
constexpr const char* kDevices = "CUDA_VISIBLE_DEVICES";

bool limits_threads(const Environment& launcher, int local_world_size) {
  return local_world_size > 1 && !launcher.has(kThreads);
}

std::string visible_device(const Environment& launcher, int local_rank) {
  const auto list = launcher.get(kDevices);
  if (!list) {
    return std::to_string(local_rank);
  }
  const auto devices = split(*list, ',');
  if (static_cast<std::size_t>(local_rank) >= devices.size()) {
    throw InvalidArgument(concat(kDevices, " is '", *list, "', which has no device for local rank ",
                                 local_rank, "; --virtual-local-rank needs one for each worker"));
  }
  return std::string(trim(devices[static_cast<std::size_t>(local_rank)]));
}

void set_torchrun(Environment::Variables& variables, const Placement& placement) {
  const auto set = [&](const char* name, const auto& value) { variables[name] = concat(value); };
  set("RANK", placement.rank);
  set("LOCAL_RANK", placement.local_rank);
  set("WORLD_SIZE", placement.world_size);
  set("LOCAL_WORLD_SIZE", placement.local_world_size);
  set("GROUP_RANK", placement.group_rank);
  set("GROUP_WORLD_SIZE", placement.group_world_size);
  set("ROLE_RANK", placement.role_rank);
  set("ROLE_WORLD_SIZE", placement.role_world_size);
  set("ROLE_NAME", placement.role_name);
  set("MASTER_ADDR", placement.master_addr);
  set("MASTER_PORT", placement.master_port);
  set("TORCHELASTIC_RESTART_COUNT", placement.restart_count);
  set("TORCHELASTIC_MAX_RESTARTS", placement.max_restarts);
  set("TORCHELASTIC_RUN_ID", placement.run_id);
  // Python compares with this very word.
  set("TORCHELASTIC_USE_AGENT_STORE", placement.use_agent_store ? "True" : "False");
  set("TORCHELASTIC_ERROR_FILE", placement.error_file);
}

void set_ours(Environment::Variables& variables, const Placement& placement) {
  std::erase_if(variables, [](const auto& entry) {
    return entry.first.starts_with("LOCKSTEP_SECRET") || entry.first == "LOCKSTEP_ETCD_PASSWORD";
  });
  variables["LOCKSTEP_EPOCH"] = std::to_string(placement.epoch);
  variables["LOCKSTEP_SLOT"] = std::to_string(placement.slot);
  variables["LOCKSTEP_SLOTS"] = std::to_string(placement.slots);
  // A launcher inside a worker of another must not hand on what belongs to the outer one.
  const auto set_or_erase = [&](const char* name, const std::string& value) {
    variables.erase(name);
    if (!value.empty()) {
      variables.emplace(name, value);
    }
  };
  set_or_erase("LOCKSTEP_AGENT", placement.agent_socket);
  set_or_erase("LOCKSTEP_RUN_DIR", placement.run_dir);
  set_or_erase("LOCKSTEP_JOINS", placement.joins ? "1" : "");
  set_or_erase("LOCKSTEP_SPARE", placement.spare ? "1" : "");
}

void erase_place(Environment::Variables& variables) {
  for (const char* name :
       {"RANK", "LOCAL_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE",
        "LOCKSTEP_EPOCH", "LOCKSTEP_SLOT", "LOCKSTEP_SLOTS", "LOCKSTEP_JOINS"}) {
    variables.erase(name);
  }
}

}  // namespace

Environment::Variables worker_environment(const Environment& launcher, const RunOptions& options,
                                          const Placement& placement) {
  Environment::Variables variables = launcher.variables();
  set_torchrun(variables, placement);
  set_ours(variables, placement);
  variables["TORCHELASTIC_SIGNALS_TO_HANDLE"] = options.signals_to_handle;
  variables.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (limits_threads(launcher, placement.local_world_size)) {
    variables.insert_or_assign(kThreads, "1");
  }
  if (options.virtual_local_rank) {
    variables.insert_or_assign("LOCAL_RANK", "0");
    variables[kDevices] = visible_device(launcher, placement.local_rank);
  }
  if (placement.spare) erase_place(variables);
  return variables;
}

void check_visible_devices(const Environment& launcher, int workers) {
  for (int local_rank = 0; local_rank < workers; ++local_rank) visible_device(launcher, local_rank);
}

std::optional<std::string> omp_notice(const Environment& launcher, int local_world_size) {
  if (!limits_threads(launcher, local_world_size)) {
    return std::nullopt;
  }
  return concat(kThreads, " is not set: each of the ", local_world_size,
                " workers gets 1, so that they do not crowd the CPUs; set it to tune");
}

}  // namespace lockstep
