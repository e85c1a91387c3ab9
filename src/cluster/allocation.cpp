#include "cluster/allocation.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>

#include "core/hostlist.h"
#include "core/parse_integer.h"
#include "launch/ip_address.h"
#include "launch/option_values.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Jobs that share a machine must not meet each other, and nodes cannot ask each other for a port.
int port_for(std::uint64_t number) {
  constexpr int kFirst = 20000;
  constexpr int kPorts = 10000;  // below those that the kernel hands out by itself
  return kFirst + static_cast<int>(number % kPorts);
}

std::optional<int> number(const Environment& environment, std::string_view name, int low) {
  const auto text = environment.get(name);
  if (!text || text->empty()) return std::nullopt;
  const auto value = parse_integer<int>(*text);
  if (!value || *value < low) {
    throw InvalidArgument(
        concat(name, " is '", *text, "'; it must be an integer of at least ", low));
  }
  return value;
}

int required(const Environment& environment, std::string_view name, int low,
             std::string_view sibling) {
  const auto value = number(environment, name, low);
  if (!value) {
    throw InvalidArgument(
        concat("--nnodes is auto, but ", name, " is not set although ", sibling, " is"));
  }
  return *value;
}

std::string shown(const Environment& environment, std::string_view name) {
  return concat(name, "=", environment.get(name).value_or(""));
}

std::vector<Host> plain_hosts(const std::vector<std::string>& names) {
  std::vector<Host> hosts;
  for (const std::string& name : names) hosts.push_back({.name = name});
  return hosts;
}

// ---- Slurm ----

struct SlurmJob {
  std::string id;
  std::vector<std::string> nodes;
  std::string evidence;
};

std::optional<SlurmJob> slurm_job(const Environment& environment) {
  const auto id = environment.get("SLURM_JOB_ID");
  const auto nodes = environment.get("SLURM_JOB_NODELIST");
  if (!id || id->empty() || !nodes || nodes->empty()) return std::nullopt;
  return SlurmJob{
      *id, expand_hostlist(*nodes),
      concat(shown(environment, "SLURM_JOB_ID"), " ", shown(environment, "SLURM_JOB_NODELIST"))};
}

// Tasks of `srun`, not the batch script, nor the shell that salloc gives.
std::optional<std::uint32_t> slurm_step(const Environment& environment) {
  constexpr std::uint32_t kFirstSpecialStep = 0xfffffff0;
  const auto text = environment.get("SLURM_STEP_ID");
  const auto id = text ? parse_integer<std::uint32_t>(*text) : std::nullopt;
  return id && *id < kFirstSpecialStep ? id : std::nullopt;
}

std::optional<Allocation> slurm_task(const Environment& environment, const SlurmJob& job) {
  const auto step = slurm_step(environment);
  const auto tasks = number(environment, "SLURM_STEP_NUM_TASKS", 1);
  const auto list = environment.get("SLURM_STEP_NODELIST");
  if (!step || !tasks || !list) return std::nullopt;
  const std::vector<std::string> nodes = expand_hostlist(*list);
  // One task in a job of several nodes: a shell by `srun --pty`, from which all are to be used.
  if (*tasks == 1 && job.nodes.size() > 1) return std::nullopt;
  if (static_cast<std::size_t>(*tasks) > nodes.size()) {
    throw InvalidArgument(
        concat("this Slurm step has ", *tasks, " tasks on ", nodes.size(),
               nodes.size() == 1 ? " node" : " nodes",
               ", and each of them is a launcher that would start workers of its own: use ",
               "srun --ntasks-per-node=1, and --nproc-per-node for the number of workers"));
  }
  const auto job_number = parse_integer<std::uint64_t>(job.id).value_or(0);
  return Allocation{
      .scheduler = Scheduler::slurm,
      .job_id = concat(job.id, ".", *step),
      .evidence =
          concat(shown(environment, "SLURM_JOB_ID"), " ", shown(environment, "SLURM_STEP_ID"), " ",
                 shown(environment, "SLURM_STEP_NODELIST")),
      .place = TaskPlace{
          .nodes = static_cast<int>(nodes.size()),
          .node_rank = required(environment, "SLURM_NODEID", 0, "SLURM_STEP_ID"),
          .endpoint = Endpoint{.host = nodes.front(), .port = port_for(job_number * 16 + *step)}}};
}

// ---- PBS ----

std::optional<Allocation> pbs_job(const Environment& environment, const ReadFile& read_file) {
  const auto id = environment.get("PBS_JOBID");
  const auto path = environment.get("PBS_NODEFILE");
  if (!id || id->empty()) return std::nullopt;
  if (!path || path->empty()) {
    throw InvalidArgument(concat("--nnodes is auto, PBS_JOBID is '", *id,
                                 "', but PBS_NODEFILE is not set: run it in the job script (not "
                                 "under pbsdsh), or give --hosts"));
  }
  const auto text = read_file(*path);
  if (!text) {
    throw InvalidArgument(concat("PBS_NODEFILE is '", *path,
                                 "', which cannot be read here: PBS has it on the job's first node "
                                 "only; run it once, in the job script, and not under pbsdsh"));
  }
  const bool interactive = environment.get("PBS_ENVIRONMENT") == "PBS_INTERACTIVE";
  return Allocation{
      .scheduler = Scheduler::pbs,
      .job_id = *id,
      .evidence = concat(shown(environment, "PBS_JOBID"), " ", shown(environment, "PBS_NODEFILE"),
                         interactive ? " (interactive)" : ""),
      .hosts = hosts_of_nodefile(*text, *path)};
}

// ---- MPI ----

struct MpiNames {
  std::string_view rank, size, local_size, cure;
};
constexpr MpiNames kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_SIZE", "mpirun --map-by ppr:1:node"};
constexpr MpiNames kPmi{"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "mpiexec -ppn 1"};
constexpr MpiNames kMvapich{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                            "MV2_COMM_WORLD_LOCAL_SIZE", "mpirun_rsh with each host once"};

// Where Open MPI's mpirun listens, "123.0;tcp://10.0.0.1,10.1.0.1:4711": as a rule on the node of
// rank 0.
std::optional<std::string> address_of_mpirun(const Environment& environment) {
  const std::string uri = environment.get("OMPI_MCA_orte_hnp_uri").value_or("");
  const std::size_t scheme = uri.find("tcp://");
  if (scheme == std::string::npos) return std::nullopt;
  const std::size_t begin = scheme + 6;
  for (const std::string_view part :
       split(std::string_view(uri).substr(begin, uri.find(':', begin) - begin), ',')) {
    const auto address = IpAddress::parse(std::string(part));
    if (address && !address->is_loopback()) return address->to_string();
  }
  return std::nullopt;
}

std::optional<Allocation> mpi_task(const Environment& environment, const MpiNames& names,
                                   const std::optional<std::vector<std::string>>& nodes) {
  const auto size = number(environment, names.size, 1);
  if (!size || *size == 1) return std::nullopt;
  const int rank = required(environment, names.rank, 0, names.size);
  const int local = number(environment, names.local_size, 1).value_or(1);
  if (local > 1) {
    throw InvalidArgument(concat(
        names.local_size, " is ", local, ": MPI has started ", local,
        " launchers on this node, and each would start workers of its own; start one per node (",
        names.cure, "), and give --nproc-per-node ", local));
  }
  std::optional<std::string> host = address_of_mpirun(environment);
  if (nodes && !nodes->empty()) host = nodes->front();
  // The same for all of them: it names this run of mpirun among others of the job.
  std::uint64_t hash = 1469598103934665603ull;
  for (const char c :
       environment.get("PMIX_NAMESPACE").value_or("") + environment.get("PMI_ID").value_or("")) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  }
  TaskPlace place{.nodes = *size, .node_rank = rank};
  if (host) place.endpoint = Endpoint{.host = *host, .port = port_for(hash >> 16)};
  return Allocation{
      .scheduler = Scheduler::mpi,
      .job_id = "",
      .evidence = concat(shown(environment, names.size), " ", shown(environment, names.rank)),
      .place = place};
}

// ---- Kubernetes ----

std::optional<Allocation> kubeflow_node(const Environment& environment) {
  const auto nodes = environment.get("PET_NNODES");
  if (!nodes || *nodes == "auto") return std::nullopt;
  const int count = required(environment, "PET_NNODES", 1, "PET_NNODES");
  TaskPlace place{
      .nodes = count,
      .node_rank = count == 1 ? 0 : required(environment, "PET_NODE_RANK", 0, "PET_NNODES")};
  if (const auto host = environment.get("PET_MASTER_ADDR")) {
    place.endpoint =
        Endpoint{.host = *host, .port = number(environment, "PET_MASTER_PORT", 1).value_or(29500)};
  }
  return Allocation{.scheduler = Scheduler::kubernetes,
                    .job_id = "",
                    .evidence = concat(shown(environment, "PET_NNODES"), " ",
                                       shown(environment, "PET_MASTER_ADDR")),
                    .place = place};
}

// The name of a pod of a JobSet: "<jobset>-<job>-<index of job>-<index of pod>.<jobset>".
std::optional<Allocation> jobset_node(const Environment& environment) {
  const auto jobset = environment.get("JOBSET_NAME");
  if (!environment.has("JOB_COMPLETION_INDEX") || !jobset || jobset->empty()) return std::nullopt;
  const auto job = environment.get("REPLICATED_JOB_NAME");
  if (!job || job->empty()) {
    throw InvalidArgument(
        "--nnodes is auto, but REPLICATED_JOB_NAME is not set although JOBSET_NAME is: set it to "
        "the "
        "name of the JobSet's replicatedJob");
  }
  const int nodes = required(environment, "NNODES", 1, "JOBSET_NAME");
  const int index = number(environment, "JOB_INDEX", 0).value_or(0);
  const std::string domain = environment.get("JOBSET_SUBDOMAIN").value_or(*jobset);
  return Allocation{
      .scheduler = Scheduler::kubernetes,
      .job_id = *jobset,
      .evidence =
          concat(shown(environment, "JOBSET_NAME"), " ", shown(environment, "JOB_COMPLETION_INDEX"),
                 " ", shown(environment, "NNODES")),
      .place = TaskPlace{
          .nodes = nodes,
          .node_rank = required(environment, "JOB_COMPLETION_INDEX", 0, "JOBSET_NAME"),
          .endpoint = Endpoint{.host = concat(*jobset, "-", *job, "-", index, "-0.", domain),
                               .port = number(environment, "MASTER_PORT", 1).value_or(29500)}}};
}

// PyTorchJob gives each pod a rank, and lets the script find out about the rest.
std::optional<Allocation> pytorchjob_node(const Environment& environment) {
  const auto host = environment.get("MASTER_ADDR");
  if (!environment.has("KUBERNETES_SERVICE_HOST") || !host || environment.has("LOCAL_RANK") ||
      !environment.has("WORLD_SIZE")) {
    return std::nullopt;
  }
  return Allocation{
      .scheduler = Scheduler::kubernetes,
      .job_id = "",
      .evidence = concat(shown(environment, "MASTER_ADDR"), " ", shown(environment, "WORLD_SIZE"),
                         " ", shown(environment, "RANK")),
      .place = TaskPlace{
          .nodes = required(environment, "WORLD_SIZE", 1, "MASTER_ADDR"),
          .node_rank = required(environment, "RANK", 0, "MASTER_ADDR"),
          .endpoint = Endpoint{.host = *host,
                               .port = number(environment, "MASTER_PORT", 1).value_or(29500)}}};
}

}  // namespace

std::string_view to_string(Scheduler scheduler) {
  switch (scheduler) {
    case Scheduler::slurm:
      return "Slurm";
    case Scheduler::pbs:
      return "PBS";
    case Scheduler::mpi:
      return "MPI";
    case Scheduler::kubernetes:
      return "Kubernetes";
  }
  return "";
}

std::optional<std::string> read_text_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) return std::nullopt;
  return text;
}

std::optional<Allocation> detect_allocation(const Environment& environment,
                                            const ReadFile& read_file) {
  const auto slurm = slurm_job(environment);
  std::optional<std::vector<std::string>> nodes;
  if (slurm) nodes = slurm->nodes;
  // mpirun starts its helpers through Slurm, so its tasks may look like those of srun.
  if (auto task = mpi_task(environment, kOpenMpi, nodes)) return task;
  if (slurm) {
    if (auto task = slurm_task(environment, *slurm)) return task;
  }
  for (const MpiNames& names : {kPmi, kMvapich}) {
    if (auto task = mpi_task(environment, names, nodes)) return task;
  }
  if (slurm) {
    return Allocation{.scheduler = Scheduler::slurm,
                      .job_id = slurm->id,
                      .evidence = slurm->evidence,
                      .hosts = plain_hosts(slurm->nodes)};
  }
  if (auto job = pbs_job(environment, read_file)) return job;
  if (auto node = kubeflow_node(environment)) return node;
  if (auto node = jobset_node(environment)) return node;
  return pytorchjob_node(environment);
}

}  // namespace lockstep
