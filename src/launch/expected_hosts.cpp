#include "launch/expected_hosts.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "core/hostlist.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::vector<std::string> hosts_of_slurm(const Environment& environment) {
  const auto list = environment.get("SLURM_JOB_NODELIST");
  if (!list) return {};
  try {
    return expand_hostlist(*list);
  } catch (const InvalidArgument&) {
    return {};
  }
}

// A line for each slot.
std::vector<std::string> hosts_of_pbs(const Environment& environment) {
  const auto path = environment.get("PBS_NODEFILE");
  if (!path) return {};
  std::ifstream file(*path);
  std::vector<std::string> hosts;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && std::ranges::find(hosts, line) == hosts.end()) hosts.push_back(line);
  }
  return hosts;
}

}  // namespace

ExpectedHosts expected_hosts(const Environment& environment, int nodes) {
  const auto fits = [&](const std::vector<std::string>& hosts) {
    return std::cmp_equal(hosts.size(), nodes);
  };
  if (auto hosts = hosts_of_slurm(environment); fits(hosts)) {
    return {std::move(hosts), "put srun --ntasks-per-node=1 before it, or say --nnodes auto"};
  }
  if (auto hosts = hosts_of_pbs(environment); fits(hosts)) {
    return {std::move(hosts), "say --nnodes auto, which starts it on all of them"};
  }
  return {};
}

}  // namespace lockstep
