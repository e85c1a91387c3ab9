#include "lockstep/environment.h"

#include <unistd.h>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/hostlist.h"
#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

struct Rule {
  int low;
  int high;
  std::string_view text;
};
constexpr Rule kCount{1, std::numeric_limits<int>::max(), "a positive integer"};
constexpr Rule kIndex{0, std::numeric_limits<int>::max(), "a non-negative integer"};
constexpr Rule kPort{1, 65535, "an integer from 1 to 65535"};

std::optional<int> read_optional(const Environment& environment, std::string_view name,
                                 const Rule& rule) {
  const auto text = environment.get(name);
  if (!text) {
    return std::nullopt;
  }
  const auto value = parse_integer<int>(*text);
  if (!value || *value < rule.low || *value > rule.high) {
    throw InvalidArgument(concat(name, " is '", *text, "'; it must be ", rule.text));
  }
  return value;
}

// `sibling` is the variable by which the launcher was recognized.
int read_required(const Environment& environment, std::string_view name, const Rule& rule,
                  std::string_view sibling) {
  const auto value = read_optional(environment, name, rule);
  if (!value) {
    throw InvalidArgument(
        concat(name, " is not set although ", sibling, " is; set both or neither"));
  }
  return *value;
}

// What one launcher calls the four numbers that all of them give.
struct RankNames {
  std::string_view rank;
  std::string_view world_size;
  std::string_view local_rank;
  std::string_view local_world_size;
};
constexpr RankNames kTorchrun{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr RankNames kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr RankNames kPmi{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr RankNames kMvapich{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                             "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"};

void check_below(std::string_view name, int value, std::string_view bound_name, int bound) {
  if (value >= bound) {
    throw InvalidArgument(
        concat(name, " is ", value, "; it must be less than ", bound_name, ", which is ", bound));
  }
}

void check_sizes(const RankEnvironment& found, const RankNames& names) {
  check_below(names.rank, found.rank, names.world_size, found.world_size);
  if (found.local_world_size > found.world_size) {
    throw InvalidArgument(concat(names.local_world_size, " is ", found.local_world_size,
                                 "; it cannot exceed ", names.world_size, ", which is ",
                                 found.world_size));
  }
}

void check(const RankEnvironment& found, const RankNames& names) {
  check_below(names.local_rank, found.local_rank, names.local_world_size, found.local_world_size);
  check_sizes(found, names);
}

bool any_rank_of(const Environment& environment, const RankNames& names) {
  return environment.has(names.rank) || environment.has(names.world_size);
}

void read_rank_and_world(const Environment& environment, const RankNames& names,
                         RankEnvironment& found) {
  found.rank = read_required(environment, names.rank, kIndex, names.world_size);
  found.world_size = read_required(environment, names.world_size, kCount, names.rank);
}

// The user's own word on where to meet. An empty address is what a script exports when the command
// that should have found it failed: it says nothing.
void read_master(const Environment& environment, RankEnvironment& found) {
  if (const auto address = environment.get("MASTER_ADDR"); address && !address->empty()) {
    found.master_addr = *address;
  }
  if (const auto port = read_optional(environment, "MASTER_PORT", kPort)) {
    found.master_port = port;
  }
}

RankEnvironment from_torchrun(const Environment& environment) {
  RankEnvironment found{.launcher = Launcher::torchrun};
  read_rank_and_world(environment, kTorchrun, found);
  // A world set up by hand often has only RANK and WORLD_SIZE. Then all ranks are taken to be on
  // this machine, so that local rank and rank are the same; on several machines the user must say
  // LOCAL_RANK, or two ranks of different machines would count as neighbours.
  found.local_world_size =
      read_optional(environment, kTorchrun.local_world_size, kCount).value_or(found.world_size);
  found.local_rank = read_optional(environment, kTorchrun.local_rank, kIndex)
                         .value_or(found.rank % found.local_world_size);
  found.node_rank = read_optional(environment, "GROUP_RANK", kIndex)
                        .value_or(found.rank / found.local_world_size);
  found.use_agent_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True";
  found.restart_count =
      read_optional(environment, "TORCHELASTIC_RESTART_COUNT", kIndex).value_or(0);
  read_master(environment, found);
  // Among processes that live on, while others are left out, local ranks have gaps.
  if (environment.get("LOCKSTEP_JOINS") == "1") {
    check_sizes(found, kTorchrun);
  } else {
    check(found, kTorchrun);
  }
  return found;
}

// A batch script has SLURM_PROCID=0 too, but is not a rank: only what srun starts is in a step. The
// shell of an interactive salloc is in a step of Slurm's own, whose numbers are at the upper end.
bool inside_slurm_step(const Environment& environment) {
  constexpr std::uint32_t kMaxNormalStep = 0xfffffff0;  // SLURM_MAX_NORMAL_STEP_ID
  const auto step = environment.get("SLURM_STEP_ID");
  return step && parse_integer<std::uint32_t>(*step).value_or(0) < kMaxNormalStep;
}

std::string slurm_master(const Environment& environment) {
  for (const std::string_view name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    if (const auto list = environment.get(name)) {
      try {
        return expand_hostlist(*list).front();
      } catch (const InvalidArgument& error) {
        throw InvalidArgument(concat(name, ": ", error.what()));
      }
    }
  }
  throw InvalidArgument(
      "SLURM_STEP_NODELIST is not set although SLURM_STEP_ID is; set MASTER_ADDR to the first "
      "node");
}

// Every rank must find the same port without talking. Two steps of one job at the same time would
// find the same one as well: such users set MASTER_PORT.
int slurm_port(const Environment& environment) {
  const std::string job = environment.get("SLURM_JOB_ID").value_or("");
  // Wider than int: the ids of a federation carry the cluster's number in their upper bits.
  const auto id = parse_integer<std::uint64_t>(job);
  if (!id) {
    throw InvalidArgument(concat("SLURM_JOB_ID is '", job, "'; it must be ", kIndex.text,
                                 ", or MASTER_PORT must be set"));
  }
  return 15000 + static_cast<int>(*id % 10000);
}

RankEnvironment from_slurm(const Environment& environment) {
  constexpr std::string_view kSibling = "SLURM_STEP_ID";
  constexpr std::string_view kTasks = "SLURM_STEP_TASKS_PER_NODE";
  // The allocation's own count can be larger than that of a step with --ntasks.
  const std::string_view size_name =
      environment.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";

  RankEnvironment found{.launcher = Launcher::slurm};
  found.rank = read_required(environment, "SLURM_PROCID", kIndex, kSibling);
  found.world_size = read_required(environment, size_name, kCount, kSibling);
  found.local_rank = read_required(environment, "SLURM_LOCALID", kIndex, kSibling);
  found.node_rank = read_required(environment, "SLURM_NODEID", kIndex, kSibling);
  found.restart_count = read_optional(environment, "SLURM_RESTART_COUNT", kIndex).value_or(0);

  const auto tasks = environment.get(kTasks);
  if (!tasks) {
    throw InvalidArgument(concat(kTasks, " is not set although ", kSibling, " is"));
  }
  try {
    found.local_world_size = tasks_on_node(*tasks, found.node_rank);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat(kTasks, ": ", error.what()));
  }

  read_master(environment, found);
  if (found.master_addr.empty()) {
    found.master_addr = slurm_master(environment);
  }
  if (!found.master_port) {
    found.master_port = slurm_port(environment);
  }
  check(found, {"SLURM_PROCID", size_name, "SLURM_LOCALID", kTasks});
  return found;
}

RankEnvironment from_mpi(const Environment& environment, Launcher launcher,
                         const RankNames& names) {
  RankEnvironment found{.launcher = launcher};
  read_rank_and_world(environment, names, found);
  // Guessing here would give two ranks one GPU, so these are required; a world of one has only one
  // answer, and small process managers leave them out.
  if (found.world_size > 1 || environment.has(names.local_rank)) {
    found.local_rank = read_required(environment, names.local_rank, kIndex, names.rank);
    found.local_world_size = read_required(environment, names.local_world_size, kCount, names.rank);
  }
  found.node_rank = found.rank / found.local_world_size;
  if (found.local_world_size == found.world_size) {
    found.master_addr = "127.0.0.1";
  }
  read_master(environment, found);
  check(found, names);
  return found;
}

// It will have a rank when init() returns. Until then it is none of those that do more than others.
RankEnvironment from_spare(const Environment& environment) {
  RankEnvironment found{.launcher = Launcher::torchrun, .rank = -1, .local_rank = -1};
  found.world_size = read_optional(environment, kTorchrun.world_size, kCount).value_or(1);
  found.local_world_size =
      read_optional(environment, kTorchrun.local_world_size, kCount).value_or(found.world_size);
  found.node_rank = read_optional(environment, "GROUP_RANK", kIndex).value_or(0);
  found.use_agent_store = true;
  found.restart_count =
      read_optional(environment, "TORCHELASTIC_RESTART_COUNT", kIndex).value_or(0);
  return found;
}

}  // namespace

Environment Environment::of_process() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      // The first of two entries with one name is the one that getenv() returns.
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return Environment(std::move(variables));
}

std::optional<std::string> Environment::get(std::string_view name) const {
  const auto found = variables_.find(name);
  return found == variables_.end() ? std::nullopt : std::optional(found->second);
}

std::string_view to_string(Launcher launcher) {
  switch (launcher) {
    case Launcher::none:
      return "none";
    case Launcher::torchrun:
      return "torchrun";
    case Launcher::slurm:
      return "slurm";
    case Launcher::open_mpi:
      return "open_mpi";
    case Launcher::pmi:
      return "pmi";
  }
  return "unknown";
}

std::optional<RankEnvironment> detect_environment(const Environment& environment) {
  if (environment.get("LOCKSTEP_SPARE") == "1") return from_spare(environment);
  // From the most specific to the least: torchrun inside a Slurm step sees both, and Slurm sets the
  // variables of PMI for its tasks.
  if (any_rank_of(environment, kTorchrun)) {
    return from_torchrun(environment);
  }
  if (inside_slurm_step(environment)) {
    return from_slurm(environment);
  }
  if (any_rank_of(environment, kOpenMpi)) {
    return from_mpi(environment, Launcher::open_mpi, kOpenMpi);
  }
  if (any_rank_of(environment, kPmi)) {
    return from_mpi(environment, Launcher::pmi, kPmi);
  }
  if (any_rank_of(environment, kMvapich)) {
    return from_mpi(environment, Launcher::pmi, kMvapich);
  }
  return std::nullopt;
}

}  // namespace lockstep
