#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

/// The commands that hand a job to a scheduler.
enum class JobKind { sbatch, qsub, manifest };

/// "sbatch".
std::string_view to_string(JobKind kind);

/// How qsub is told of nodes: PBS Pro and OpenPBS, or Torque.
enum class PbsDialect { pbs, torque };

/// What a user asked for beside the job itself. What a kind has no use for keeps its default.
struct JobOptions {
  JobKind kind = JobKind::sbatch;

  std::string job_name;  // empty: after the program
  int nodes = 1;
  std::optional<std::string> time;  // as the scheduler writes it
  std::optional<std::string> output;
  std::optional<std::string> account;
  std::optional<std::string> queue;  // Slurm's partition
  std::optional<std::string> qos;
  std::optional<std::string> constraint;
  bool exclusive = false;
  std::optional<int> gpus_per_node;
  std::optional<int> cpus_per_node;
  std::optional<std::string> memory;             // of a node
  std::vector<std::string> scheduler_arguments;  // more of them, for the script's directives

  std::vector<std::string> modules;
  std::optional<std::string> venv;
  std::vector<std::string> setup;  // lines of shell that run before the job
  std::vector<std::pair<std::string, std::string>> environment;

  std::chrono::seconds warning{60};  // before the time is over
  bool requeue = true;               // a job that has saved and asks for it
  int max_requeues = 20;

  PbsDialect dialect = PbsDialect::pbs;

  // Kubernetes.
  std::string image;
  std::optional<std::string> name_space;
  std::string secret;                                        // its name; empty: after the job
  int port = 29400;                                          // where nodes meet
  std::vector<std::pair<std::string, std::string>> volumes;  // a claim, and where it is seen
  std::optional<std::string> shared_memory;                  // the size of /dev/shm

  std::string lockstep;               // the program on the nodes; empty: where this one is
  std::optional<std::string> script;  // a file to write; unset: none that stays
  bool print = false;                 // the script, and submit nothing
  bool help = false;                  // nothing but this is set then

  std::vector<std::string> run_words;  // of `lockstep run`: options, program, arguments
};

/// Takes a command line (without the command) apart: options, then "--", then what `lockstep run`
/// is told. Throws InvalidArgument, one line that names the option, its value and the cure; also
/// for what `lockstep run` would refuse.
JobOptions parse_job_options(JobKind kind, const std::vector<std::string>& arguments);

/// The answer to --help.
std::string job_help(JobKind kind);

}  // namespace lockstep
