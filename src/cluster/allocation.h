#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/hosts.h"
#include "launch/endpoint.h"
#include "lockstep/environment.h"

namespace lockstep {

enum class Scheduler { slurm, pbs, mpi, kubernetes };

/// "Slurm", "PBS", "MPI", "Kubernetes".
std::string_view to_string(Scheduler scheduler);

/// This process's place, where one launcher per node is already running.
struct TaskPlace {
  int nodes = 1;
  int node_rank = 0;
  std::optional<Endpoint> endpoint = {};    // where they meet; unset: nothing says it
  std::optional<std::string> workers = {};  // as --nproc-per-node takes it

  bool operator==(const TaskPlace&) const = default;
};

/// Machines that a batch system has given to the job in which this process runs.
struct Allocation {
  Scheduler scheduler = Scheduler::slurm;
  std::string job_id;
  std::string evidence;                 // the variables by which it was found
  std::vector<Host> hosts = {};         // in order; empty where only the own place is known
  std::optional<TaskPlace> place = {};  // set: nothing is to be started
};

/// The text of a file; std::nullopt if it cannot be read.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;
std::optional<std::string> read_text_file(const std::string& path);

/// What the environment says about the job in which this process runs; std::nullopt: it is in none.
///
/// A process that was started as one of several tasks (mpirun, srun) says more than the allocation
/// around it. Then come Slurm, PBS and Torque, and Kubernetes (Kubeflow's PET_* variables, JobSet,
/// PyTorchJob). Throws InvalidArgument, in one line with the cure, for variables that contradict
/// each other and for several launchers on one node.
std::optional<Allocation> detect_allocation(const Environment& environment,
                                            const ReadFile& read_file);

}  // namespace lockstep
