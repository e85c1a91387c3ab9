#include "cluster/cluster_run.h"

#include <unistd.h>
#include <array>
#include <climits>
#include <cstdio>
#include <filesystem>

#include "cluster/allocation.h"
#include "cluster/head.h"
#include "cluster/prologue.h"
#include "cluster/slurm_address.h"
#include "launch/final_report.h"
#include "launch/ip_address.h"
#include "launch/line_prefix.h"
#include "launch/parse_options.h"
#include "launch/run_command.h"
#include "launch/run_directory.h"
#include "launch/secret.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::string own_program() {
  std::array<char, PATH_MAX> path;
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) throw_errno("cannot find out where this program is");
  return {path.data(), static_cast<std::size_t>(length)};
}

// The variable is what the shell calls the place, which other machines may have where the real path
// is of this one only.
std::string working_directory(const Environment& environment) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::current_path();
  const std::filesystem::path said = environment.get("PWD").value_or("");
  if (said.is_absolute() && std::filesystem::equivalent(said, real, error)) return said.string();
  return real.string();
}

std::string hostfile_text(const std::string& path) {
  const auto text = read_text_file(path);
  if (!text) throw InvalidArgument(concat("--hostfile is '", path, "', which cannot be read"));
  return *text;
}

std::vector<Host> named_hosts(const RunOptions& options,
                              const std::optional<Allocation>& allocation) {
  if (options.hosts) return hosts_of(*options.hosts);
  if (options.hostfile) return hosts_of_file(hostfile_text(*options.hostfile), *options.hostfile);
  return allocation->hosts;
}

// pbsdsh knows machines by their place in the job.
void take_task_indices(std::vector<Host>& hosts, const std::optional<Allocation>& allocation) {
  if (!allocation) return;
  for (Host& host : hosts) {
    for (const Host& known : allocation->hosts) {
      if (known.name == host.name) host.task_index = known.task_index;
    }
  }
}

int run_head(const HeadPlan& plan) {
  const RunOptions& options = plan.options;
  Console console({.quiet = options.quiet});
  if (options.dry_run) {
    std::fputs(describe_head(plan).c_str(), stdout);
    return 0;
  }
  for (const std::string& notice : options.notices) console.note(notice);
  if (!plan.secret.empty()) guard_secret();
  SignalInbox signals(options.stop_signals);
  // In the temporary place: --run-dir is for the nodes.
  RunDirectory directory(
      {.path = std::nullopt, .run_id = options.rdzv_id, .host = LocalMachine::current().name},
      plan.environment);
  LogPump pump;
  console.set_sink([&](std::string text) { pump.print(STDERR_FILENO, std::move(text)); });
  EventLoop loop;
  Finish finish;
  std::vector<std::string> last_words;
  {
    Head head(plan, {.loop = loop,
                     .pump = pump,
                     .signals = signals,
                     .console = console,
                     .directory = directory});
    finish = head.run();
    last_words = head.last_words();
  }
  directory.finish(/*succeeded=*/true);  // nothing in it is of use to anybody any more
  while (!pump.drain_all(std::chrono::milliseconds(200)) && !signals.next()) {
  }
  console.set_sink({});
  if (finish.code != 0) {
    print_report(options, finish, plan.environment, console);
    for (const std::string& line : last_words) console.print(concat("  | ", line, "\n"));
  }
  return finish.code;
}

// What is about starting launchers means nothing where they run already.
void check_nothing_is_to_be_started(RunOptions& options) {
  for (const std::string name : {"include", "exclude"}) {
    if (options.given.contains(name)) {
      throw InvalidArgument(concat("--", name,
                                   " chooses machines to start launchers on, but one per ",
                                   "node is already running; choose them where those are started"));
    }
  }
  for (const std::string name : {"starter", "ssh-options", "export", "remote-lockstep"}) {
    if (options.given.contains(name)) {
      options.notices.push_back(
          concat("--", name, " has no effect: one launcher per node is already running"));
    }
  }
}

// One launcher per node is running already, and this is one of them.
int run_in_place(LaunchCommand command, RunOptions options, const Environment& environment,
                 const Allocation& allocation) {
  check_nothing_is_to_be_started(options);
  const TaskPlace& place = *allocation.place;
  NodePlacement placement{.min_nodes = place.nodes,
                          .max_nodes = place.nodes,
                          .node_rank = options.node_rank.value_or(place.node_rank),
                          .endpoint = {},
                          .hosts = false,
                          .headed = false,
                          .run_id = std::nullopt,
                          .workers = std::nullopt};
  if (options.rdzv_backend == "etcd") {
    // They meet there, whoever hosts.
  } else if (!options.rdzv_endpoint.empty()) {
    placement.endpoint = parse_endpoint(options.rdzv_endpoint, 29400);
  } else if (place.endpoint) {
    placement.endpoint = *place.endpoint;
    // Slurm knows its nodes also where no name service does.
    if (allocation.scheduler == Scheduler::slurm && place.nodes > 1 &&
        resolve(placement.endpoint.host).empty()) {
      const auto address = slurm_address_of(placement.endpoint.host);
      if (address) placement.endpoint.host = *address;
    }
  } else if (place.nodes > 1) {
    throw InvalidArgument(concat("--nnodes is auto, and ", to_string(allocation.scheduler), " (",
                                 allocation.evidence,
                                 ") does not say where the first node is: give ",
                                 "--rdzv-endpoint HOST:PORT, the same for all"));
  }
  placement.hosts = placement.node_rank == 0;
  if (!options.given.contains("rdzv-id") && !allocation.job_id.empty()) {
    placement.run_id = allocation.job_id;
  }
  if (!options.given.contains("nproc-per-node")) placement.workers = place.workers;
  place_node(options, placement);
  if (placement.node_rank == 0) {
    options.notices.insert(
        options.notices.begin(),
        concat(to_string(allocation.scheduler), ": ", place.nodes,
               place.nodes == 1 ? " node" : " nodes, of which each has its launcher", " (",
               allocation.evidence, ")"));
  }
  return run_command(command, options, environment);
}

[[noreturn]] void refuse_without_allocation() {
  throw InvalidArgument(
      "--nnodes is auto, but this is not inside a job of Slurm (SLURM_JOB_ID), PBS (PBS_JOBID), "
      "MPI (OMPI_COMM_WORLD_SIZE, PMI_SIZE) or Kubernetes (PET_NNODES, JOBSET_NAME): start it in "
      "one, or give --hosts, --hostfile or a number");
}

std::optional<Allocation> find_allocation(const Environment& environment, bool lists_hosts) {
  try {
    auto allocation = detect_allocation(environment, read_text_file);
    if (!lists_hosts && !allocation) refuse_without_allocation();
    return allocation;
  } catch (const InvalidArgument&) {
    // Who names the machines does not depend on it.
    if (lists_hosts) return std::nullopt;
    throw;
  }
}

}  // namespace

int cluster_run(LaunchCommand command, const std::vector<std::string>& arguments,
                const Environment& own, const std::string& version) {
  RunOptions options = parse_options(command, arguments, own);
  if (options.help) return run_command(command, options, own);
  const bool lists_hosts = options.hosts || options.hostfile;
  std::optional<Allocation> allocation;
  if (options.seeks_nodes()) allocation = find_allocation(own, lists_hosts);
  if (!options.seeks_nodes() || (!lists_hosts && allocation->place)) {
    const Environment environment = options.prologue ? after_prologue(*options.prologue, own) : own;
    if (!options.seeks_nodes()) return run_command(command, options, environment);
    return run_in_place(command, options, environment, *allocation);
  }
  if (options.prefix) check_line_prefix("--prefix", *options.prefix);
  std::vector<Host> hosts =
      chosen_hosts(named_hosts(options, allocation), options.include, options.exclude);
  take_task_indices(hosts, allocation);
  HeadPlan plan = plan_head({.command = command,
                             .arguments = arguments,
                             .options = options,
                             .hosts = hosts,
                             .allocation = allocation,
                             .version = version,
                             .program = own_program(),
                             .working_directory = working_directory(own)},
                            own);
  const std::string source =
      options.hosts      ? std::string("--hosts")
      : options.hostfile ? concat("--hostfile ", *options.hostfile)
                         : concat(to_string(allocation->scheduler), ", ", allocation->evidence);
  plan.options.notices.insert(
      plan.options.notices.begin(),
      concat(hosts.size(), hosts.size() == 1 ? " node: " : " nodes: ", list_hosts(hosts), " (",
             source, "), started with ", to_string(plan.starter)));
  return run_head(plan);
}

}  // namespace lockstep
