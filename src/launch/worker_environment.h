#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launch/options.h"
#include "lockstep/environment.h"

namespace lockstep {

/// One worker's place in one membership of the job.
struct Placement {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  int group_rank = 0;        // of the node
  int group_world_size = 1;  // nodes
  int role_rank = 0;
  int role_world_size = 1;
  std::string role_name = "default";
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  int restart_count = 0;
  int max_restarts = 0;
  std::string run_id;
  bool use_agent_store = true;
  std::string error_file;  // empty: none is to be written

  std::uint64_t epoch = 1;
  int slot = 0;              // the worker's place in the job, whoever is left out of this epoch
  int slots = 1;             // places of the job
  bool joins = false;        // takes a dead worker's place among others that have lived on
  bool spare = false;        // has no place yet: what a place decides is left out
  std::string agent_socket;  // empty: there is none
  std::string run_dir;       // empty: there is none
};

/// The whole environment of a worker: the launcher's own, torchrun's variables, and
/// LOCKSTEP_AGENT, LOCKSTEP_EPOCH, LOCKSTEP_SLOT, LOCKSTEP_SLOTS and LOCKSTEP_RUN_DIR, and
/// LOCKSTEP_JOINS=1 for one that joins others at work. Variables whose names begin with
/// LOCKSTEP_SECRET are left out. A spare has LOCKSTEP_SPARE=1, and nothing that names its rank, its
/// epoch or where the store is.
///
/// Throws InvalidArgument under --virtual-local-rank when CUDA_VISIBLE_DEVICES has no entry for the
/// local rank.
Environment::Variables worker_environment(const Environment& launcher, const RunOptions& options,
                                          const Placement& placement);

/// Under --virtual-local-rank: throws InvalidArgument if CUDA_VISIBLE_DEVICES has too few devices.
void check_visible_devices(const Environment& launcher, int workers);

/// One line for the user where worker_environment() sets OMP_NUM_THREADS=1, as torchrun does when
/// several workers share a machine and nobody has said how many threads each may have.
std::optional<std::string> omp_notice(const Environment& launcher, int local_world_size);

}  // namespace lockstep
