#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

/// Environment variables as they were at one moment. Code that depends on them takes one of these,
/// so that it can be tested with any environment and reads a consistent one.
class Environment {
 public:
  using Variables = std::map<std::string, std::string, std::less<>>;

  explicit Environment(Variables variables) : variables_(std::move(variables)) {}

  /// A copy of this process's environment. Not to be called while another thread runs setenv().
  static Environment of_process();

  /// The variable's value, which may be empty; std::nullopt if it is not set.
  std::optional<std::string> get(std::string_view name) const;

  bool has(std::string_view name) const { return variables_.find(name) != variables_.end(); }

  const Variables& variables() const { return variables_; }

 private:
  Variables variables_;
};

/// Who started this process as one rank of many.
enum class Launcher { none, torchrun, slurm, open_mpi, pmi };

/// The enumerator's name: "torchrun", "open_mpi".
std::string_view to_string(Launcher launcher);

/// This process's place in its job.
struct RankEnvironment {
  Launcher launcher = Launcher::none;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // among the ranks of this machine
  int local_world_size = 1;  // how many ranks this machine has

  // torchrun and Slurm say it. Elsewhere it is rank / local_world_size, which is right where every
  // machine has as many ranks and they are numbered machine by machine.
  int node_rank = 0;

  std::string master_addr;         // empty: nobody said, and the ranks are on several machines
  std::optional<int> master_port;  // 1 to 65535
  bool use_agent_store = false;    // the launcher already serves the store; rank 0 must not
  int restart_count = 0;           // how often the launcher has started this job anew
};

/// Reads torchrun's variables, else Slurm's, else Open MPI's, else those of PMI (MPICH, Intel MPI)
/// and MVAPICH2. Returns std::nullopt if none of them is set: this process was started by itself.
///
/// MASTER_ADDR and MASTER_PORT count under every launcher. Throws InvalidArgument, naming the
/// variable, when one is missing beside its siblings, is malformed, or contradicts another.
std::optional<RankEnvironment> detect_environment(const Environment& environment);

}  // namespace lockstep
