#include "cluster/start_command.h"
#include "jobs/job_script.h"
#include "jobs/script_parts.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// sbatch reads these lines with quotes as a shell's.
std::string directive(std::string_view name, const std::string& value) {
  return concat("#SBATCH --", name, "=", shell_quoted(value), "\n");
}

std::string directive(std::string_view name, const std::optional<std::string>& value) {
  return value ? directive(name, *value) : "";
}

std::string directive(std::string_view name, const std::optional<int>& value) {
  return value ? directive(name, concat(*value)) : "";
}

std::string slurm_directives(const JobOptions& options) {
  std::string text =
      concat(directive("job-name", options.job_name), directive("nodes", concat(options.nodes)),
             "#SBATCH --ntasks-per-node=1\n", directive("time", options.time),
             directive("partition", options.queue), directive("account", options.account),
             directive("qos", options.qos), directive("constraint", options.constraint),
             options.exclusive ? "#SBATCH --exclusive\n" : "",
             directive("gpus-per-node", options.gpus_per_node),
             directive("cpus-per-task", options.cpus_per_node), directive("mem", options.memory),
             directive("output", options.output));
  // To this shell alone (B): Slurm would send it to every process of the job, and those that do not
  // catch it would die of it.
  text += concat("#SBATCH --signal=B:USR1@", options.warning.count(), "\n");
  text += options.requeue ? "#SBATCH --requeue\n" : "#SBATCH --no-requeue\n";
  text += "#SBATCH --open-mode=append\n";  // a job that comes again keeps what it said before
  for (const std::string& argument : options.scheduler_arguments) {
    text += concat("#SBATCH ", shell_quoted(argument), "\n");
  }
  return text;
}

constexpr std::string_view kSlurmRequeue = R"sh(
if [ "$code" -eq "$saved" ]; then
  job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
  job=${job:-$SLURM_JOB_ID}
  state=$(squeue --noheader --format=%T --jobs="$job")
  # For a while after a warning it is SIGNALING; anything else: somebody has cancelled it.
  if [ "$state" != RUNNING ] && [ "$state" != SIGNALING ]; then
    echo "lockstep: the program has saved; job $job is $state, and not queued again" >&2
  elif [ "${SLURM_RESTART_COUNT:-0}" -lt "$most" ]; then
    echo "lockstep: the program has saved; job $job is queued again" >&2
    scontrol requeue "$job"
  else
    echo "lockstep: the program has saved, but job $job has come again $most times (--max-requeues)" >&2
  fi
fi
)sh";

std::string slurm_requeue(const JobOptions& options) {
  if (!options.requeue) return "";
  return concat("saved=", resume_code(), "\nmost=", options.max_requeues, kSlurmRequeue);
}

constexpr std::string_view kSlurmTraps = R"sh(#
# Written by `lockstep sbatch`; to be submitted with sbatch.

launcher=
pass_on() {
  heard=1
  if [ -n "$launcher" ]; then
    kill -s "$1" "$launcher"
  elif [ "$1" = TERM ]; then
    exit 143  # there is nothing to be saved yet
  fi
}
trap 'pass_on USR1' USR1  # the time is nearly over; the launcher tells all ranks
trap 'pass_on TERM' TERM
)sh";

}  // namespace

std::string slurm_script(const JobOptions& options) {
  return concat(script_head(options), slurm_directives(options), kSlurmTraps,
                "export LOCKSTEP_WARNING_SECONDS=", options.warning.count(), "\n",
                preparation(options), "\n", run_and_wait(options), slurm_requeue(options),
                "exit \"$code\"\n");
}

}  // namespace lockstep
