#include "cluster/find_hosts.h"

#include <cerrno>
#include <cstring>

#include "cluster/slurm_address.h"
#include "launch/ip_address.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::optional<Allocation> find_allocation(const Environment& environment, bool lists_hosts) {
  std::optional<Allocation> allocation;
  try {
    allocation = detect_allocation(environment, read_text_file);
  } catch (const InvalidArgument&) {
    if (!lists_hosts) throw;
    return std::nullopt;  // who names the machines does not depend on it
  }
  if (allocation || lists_hosts) return allocation;
  throw InvalidArgument(
      "--nnodes is auto, but this is not inside a job of Slurm (SLURM_JOB_ID), PBS (PBS_JOBID), "
      "MPI (OMPI_COMM_WORLD_SIZE, PMI_SIZE) or Kubernetes (PET_NNODES, JOBSET_NAME): start it in "
      "one, or give --hosts, --hostfile or a number");
}

std::vector<Host> named_hosts(const RunOptions& options,
                              const std::optional<Allocation>& allocation) {
  if (options.hosts) return hosts_of(*options.hosts);
  if (!options.hostfile) return allocation->hosts;
  const auto text = read_text_file(*options.hostfile);
  if (!text) {
    throw InvalidArgument(concat("--hostfile is '", *options.hostfile,
                                 "', which cannot be read: ", std::strerror(errno)));
  }
  return hosts_of_file(*text, *options.hostfile);
}

// pbsdsh knows machines by their place in the job.
void take_task_indices(std::vector<Host>& hosts, const Allocation& allocation) {
  for (Host& host : hosts) {
    for (const Host& known : allocation.hosts) {
      if (known.name == host.name) host.task_index = known.task_index;
    }
  }
}

}  // namespace

FoundHosts find_hosts(const RunOptions& options, const Environment& environment) {
  const bool lists_hosts = options.hosts || options.hostfile;
  FoundHosts found{
      .allocation = find_allocation(environment, lists_hosts), .hosts = {}, .source = {}};
  found.source = options.hosts      ? std::string("--hosts")
                 : options.hostfile ? concat("--hostfile ", *options.hostfile)
                                    : concat(to_string(found.allocation->scheduler), ", ",
                                             found.allocation->evidence);
  if (!lists_hosts && found.allocation->place) return found;
  found.hosts =
      chosen_hosts(named_hosts(options, found.allocation), options.include, options.exclude);
  if (found.allocation) take_task_indices(found.hosts, *found.allocation);
  return found;
}

std::optional<Endpoint> meeting_endpoint(const Allocation& allocation) {
  if (!allocation.place || !allocation.place->endpoint) return std::nullopt;
  Endpoint endpoint = *allocation.place->endpoint;
  if (allocation.scheduler == Scheduler::slurm && allocation.place->nodes > 1 &&
      resolve(endpoint.host).empty()) {
    if (const auto address = slurm_address_of(endpoint.host)) endpoint.host = *address;
  }
  return endpoint;
}

std::vector<std::string> notices_in_place(const RunOptions& options) {
  for (const std::string name : {"include", "exclude"}) {
    if (options.given.contains(name)) {
      throw InvalidArgument(concat("--", name,
                                   " chooses machines to start launchers on, but one per ",
                                   "node is already running; choose them where those are started"));
    }
  }
  std::vector<std::string> notices;
  for (const std::string name : {"starter", "ssh-options", "export", "remote-lockstep"}) {
    if (options.given.contains(name)) {
      notices.push_back(
          concat("--", name, " has no effect: one launcher per node is already running"));
    }
  }
  return notices;
}

}  // namespace lockstep
