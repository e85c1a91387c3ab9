#include <algorithm>
#include <cctype>

#include "cluster/start_command.h"
#include "core/parse_integer.h"
#include "jobs/job_script.h"
#include "jobs/script_parts.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// What qsub makes of quotes in a script's directives depends on its make and version.
std::string plain(std::string_view option, const std::string& value) {
  const bool safe = std::ranges::all_of(value, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-+.,:/=@%^").find(c) != std::string_view::npos;
  });
  if (safe && !value.empty()) return value;
  throw InvalidArgument(
      concat("--", option, " is '", value, "'; PBS takes letters, digits and _-+.,:/=@%^ there"));
}

// Seconds of SECONDS, MM:SS or HH:MM:SS.
std::int64_t seconds_of(const std::string& time) {
  std::int64_t seconds = 0;
  std::string_view rest = time;
  for (int fields = 1;; ++fields) {
    const std::size_t colon = rest.find(':');
    const auto value = parse_integer<std::int32_t>(rest.substr(0, colon));
    if (!value || *value < 0 || fields > 3) {
      throw InvalidArgument(
          concat("--time is '", time, "'; write HH:MM:SS, MM:SS or seconds, as PBS does"));
    }
    seconds = seconds * 60 + *value;
    if (colon == std::string_view::npos) return seconds;
    rest.remove_prefix(colon + 1);
  }
}

std::string pbs_resources(const JobOptions& options) {
  const bool torque = options.dialect == PbsDialect::torque;
  std::string text = concat("#PBS -l ", torque ? "nodes=" : "select=", options.nodes);
  if (options.cpus_per_node) text += concat(torque ? ":ppn=" : ":ncpus=", *options.cpus_per_node);
  if (options.gpus_per_node) text += concat(torque ? ":gpus=" : ":ngpus=", *options.gpus_per_node);
  if (options.memory && !torque) text += concat(":mem=", plain("mem", *options.memory));
  text += "\n";
  if (options.memory && torque) {
    throw InvalidArgument(
        "--mem is for a node, and Torque counts memory for the whole job; write "
        "--qsub-arg='-l mem=SIZE'");
  }
  // A launcher for each machine.
  if (!torque) text += "#PBS -l place=scatter\n";
  if (options.time) text += concat("#PBS -l walltime=", plain("time", *options.time), "\n");
  return text;
}

std::string pbs_directives(const JobOptions& options) {
  std::string text = concat("#PBS -N ", plain("job-name", options.job_name), "\n",
                            pbs_resources(options), "#PBS -j oe\n");
  if (options.queue) text += concat("#PBS -q ", plain("queue", *options.queue), "\n");
  if (options.account) text += concat("#PBS -A ", plain("account", *options.account), "\n");
  if (options.output) text += concat("#PBS -o ", plain("output", *options.output), "\n");
  text += options.requeue ? "#PBS -r y\n" : "#PBS -r n\n";
  for (const std::string& argument : options.scheduler_arguments) {
    text += concat("#PBS ", argument, "\n");
  }
  return text;
}

// PBS gives no warning before it ends a job, so the script does.
std::string alarm(const JobOptions& options) {
  if (!options.time) return "";
  const std::int64_t all = seconds_of(*options.time);
  const std::int64_t warning = options.warning.count();
  if (all <= warning) {
    throw InvalidArgument(concat("--time is ", all, " s, which is no more than the ", warning,
                                 " s before the end at which ranks are warned (--warn)"));
  }
  return concat("export LOCKSTEP_JOB_END_TIME=$(($(date +%s) + ", all, "))\n",
                "(trap 'kill $!' TERM; sleep ", all - warning,
                " & wait $! && kill -s USR1 $$) &\nalarm=$!\n");
}

// qrerun is for operators at many sites; anybody may submit the script again.
constexpr std::string_view kPbsRequeue = R"sh(
first=${LOCKSTEP_FIRST_JOB:-$PBS_JOBID}
count_file=.lockstep-restarts-$first
if [ "$code" -ne "$saved" ] || [ "$stopped" -eq 1 ]; then  # stopped: somebody has deleted it
  rm -f "$count_file"
  exit "$code"
fi
count=$(cat "$count_file" 2>/dev/null || echo 0)
if [ "$count" -ge "$most" ]; then
  echo "lockstep: the program has saved, but the job has come again $count times (--max-requeues)" >&2
  rm -f "$count_file"
  exit "$code"
fi
echo $((count + 1)) > "$count_file"
echo "lockstep: the program has saved; job $PBS_JOBID is queued again" >&2
qrerun "$PBS_JOBID" 2>/dev/null || qsub -v LOCKSTEP_FIRST_JOB="$first" "$script"
)sh";

std::string pbs_requeue(const JobOptions& options) {
  if (!options.requeue) return "";
  return concat("saved=", resume_code(), "\nmost=", options.max_requeues,
                "\nscript=", shell_quoted(*options.script), kPbsRequeue);
}

constexpr std::string_view kPbsTraps = R"sh(#
# Written by `lockstep qsub`; to be submitted with qsub.

cd "$PBS_O_WORKDIR" || exit
launcher=
alarm=
pass_on() {
  heard=1
  if [ -n "$launcher" ]; then
    kill -s "$1" "$launcher"
  elif [ "$1" = TERM ]; then
    exit 143  # there is nothing to be saved yet
  fi
}
trap 'pass_on USR1' USR1  # the time is nearly over; the launcher tells all ranks
stopped=0
trap 'stopped=1; pass_on TERM' TERM
)sh";

}  // namespace

std::string pbs_script(const JobOptions& options) {
  return concat(script_head(options), pbs_directives(options), kPbsTraps, preparation(options),
                alarm(options), "\n", run_and_wait(options),
                "if [ -n \"$alarm\" ]; then kill \"$alarm\" 2>/dev/null; fi\n",
                pbs_requeue(options), "exit \"$code\"\n");
}

}  // namespace lockstep
