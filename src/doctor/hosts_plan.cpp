#include "doctor/hosts_plan.h"

#include <unistd.h>

#include <array>
#include <climits>
#include <filesystem>

#include "launch/run_command.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::string own_program() {
  std::array<char, PATH_MAX> path;
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) throw_errno("cannot find out where this program is");
  return {path.data(), static_cast<std::size_t>(length)};
}

// What the shell calls the place: other machines may have it where the real path is of this one.
std::string working_directory(const Environment& environment) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::current_path();
  const std::filesystem::path said = environment.get("PWD").value_or("");
  if (said.is_absolute() && std::filesystem::equivalent(said, real, error)) return said.string();
  return real.string();
}

std::vector<Host> named_hosts(const RunOptions& options,
                              const std::optional<Allocation>& allocation) {
  if (options.hosts) return hosts_of(*options.hosts);
  if (options.hostfile) {
    const auto text = read_text_file(*options.hostfile);
    if (!text) {
      throw InvalidArgument(
          concat("--hostfile is '", *options.hostfile, "', which cannot be read"));
    }
    return hosts_of_file(*text, *options.hostfile);
  }
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

std::optional<Allocation> find_allocation(const Environment& environment, bool lists_hosts) {
  try {
    auto allocation = detect_allocation(environment, read_text_file);
    if (allocation || lists_hosts) return allocation;
  } catch (const InvalidArgument&) {
    if (!lists_hosts) throw;
    return std::nullopt;  // who names the machines does not depend on it
  }
  throw InvalidArgument(
      "--nnodes is auto, but this is not inside a job of Slurm, PBS, MPI or Kubernetes: start it "
      "in "
      "one, or give --hosts, --hostfile or a number");
}

}  // namespace

HostsPlan plan_hosts(const DoctorOptions& options, const std::vector<std::string>& arguments,
                     const Environment& environment, const std::string& version) {
  // As a job would be started: the words that both commands have, and a program that never is.
  std::vector<std::string> words = options.host_words;
  if (!options.endpoint.empty()) words.push_back(concat("--rdzv-endpoint=", options.endpoint));
  if (options.secret_file) words.push_back(concat("--secret-file=", *options.secret_file));
  if (options.insecure) words.emplace_back("--insecure");
  words.insert(words.end(), {"--no-python", "true"});
  const RunOptions run = parse_options(LaunchCommand::run, words, environment);
  const bool lists_hosts = run.hosts || run.hostfile;
  const auto allocation = find_allocation(environment, lists_hosts);

  HostsPlan plan;
  plan.source = run.hosts ? std::string("--hosts")
                : run.hostfile
                    ? concat("--hostfile ", *run.hostfile)
                    : concat(to_string(allocation->scheduler), ", ", allocation->evidence);
  if (!lists_hosts && allocation->place) {
    plan.place = allocation->place;
    return plan;
  }
  std::vector<Host> hosts = chosen_hosts(named_hosts(run, allocation), run.include, run.exclude);
  take_task_indices(hosts, allocation);
  plan.head = plan_head({.command = LaunchCommand::run,
                         .arguments = arguments,
                         .options = run,
                         .hosts = hosts,
                         .allocation = allocation,
                         .version = version,
                         .program = own_program(),
                         .working_directory = working_directory(environment)},
                        environment);
  return plan;
}

}  // namespace lockstep
