#include "launch/manual_text.h"

#include <array>

#include "launch/option_values.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::array<Entry, 7> kLauncherVariables{{
    {"PYTHON_EXEC", "The Python that runs scripts, before that of the virtual environment."},
    {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "What --shutdown-timeout is when it is not given."},
    {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "Prefix of lines under --tee, as --prefix gives it."},
    {"OMP_NUM_THREADS", "Passed on; 1 for each worker when it is not set and there are several."},
    {"LOCKSTEP_JOB_END_TIME",
     "When the scheduler ends the job, in seconds since 1970; SLURM_JOB_END_TIME goes before it."},
    {"LOCKSTEP_WARNING_SECONDS",
     "How long before the end the scheduler warns, where nothing tells when that is."},
    {"NO_COLOR", "Set to anything: no colours on a terminal."},
}};

constexpr std::array<Entry, 10> kWorkerVariables{{
    {"RANK, WORLD_SIZE", "Place among all workers of the job, and how many there are."},
    {"LOCAL_RANK, LOCAL_WORLD_SIZE", "The same among the workers of the node."},
    {"GROUP_RANK, GROUP_WORLD_SIZE", "The node's place among nodes, and how many there are."},
    {"ROLE_NAME, ROLE_RANK, ROLE_WORLD_SIZE", "The role, and the place in it."},
    {"MASTER_ADDR, MASTER_PORT", "Where the store of the job listens."},
    {"TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS, TORCHELASTIC_RUN_ID",
     "Restarts so far and at most; the id of the job."},
    {"TORCHELASTIC_ERROR_FILE", "Where to write why the worker failed, as JSON."},
    {"TORCHELASTIC_USE_AGENT_STORE", "True: the launcher serves the store, rank 0 must not."},
    {"LOCKSTEP_AGENT, LOCKSTEP_EPOCH, LOCKSTEP_SLOT, LOCKSTEP_SLOTS",
     "The launcher's socket; the number of this membership; the worker's slot in the job, and how "
     "many slots there are, also while some are left out (--min-world)."},
    {"LOCKSTEP_RUN_DIR", "The folder of this run."},
}};

constexpr std::array<Entry, 6> kExitStatuses{{
    {"0", "All workers ended with 0."},
    {"1", "The launcher failed: the system refused something, or the nodes did not meet."},
    {"2", "A mistake in the command line or in a variable; nothing was started."},
    {"75", "A worker has saved its state and asks to be run again."},
    {"128 + N", "The first worker to fail was ended by signal N; or signal N stopped the job."},
    {"other", "The exit code of the first worker to fail."},
}};

constexpr std::array<Entry, 5> kExamples{{
    {"lockstep run --nproc-per-node=4 train.py --lr 0.1", "Four workers on this machine."},
    {"lockstep run --nproc-per-node=gpu ./train", "A program, one worker for each GPU."},
    {"lockstep run --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node0:29400 --rdzv-id=7 "
     "--secret-file=secret train.py",
     "The same line on two machines."},
    {"lockstep run --nproc-per-node=2 --tee=3 --log-dir=logs train.py",
     "Output with a prefix on the console, and in files."},
    {"lockstep run --nproc-per-node=2 --dry-run train.py", "What would be started."},
}};

}  // namespace

std::string_view description(LaunchCommand command) {
  if (command == LaunchCommand::launch) {
    return "Does what lockstep run does, and gives SCRIPT the argument --local-rank=N first, as "
           "python -m torch.distributed.launch did.";
  }
  return "Starts SCRIPT several times on this machine, and on others where the same command is "
         "given, as the workers of one job; watches them, and when one fails stops or restarts "
         "all. It takes torchrun's options and gives workers torchrun's environment.";
}

std::string_view spelling_rules() {
  return "Options end where SCRIPT begins: what follows is SCRIPT's. '-' and '_' in names are the "
         "same, and a name may be cut short while it is clear. A variable stands for an option "
         "that is not given; for an option without value it is 1 or 0.";
}

std::string_view program_rules() {
  return "A .py file is run by Python. An executable file that is a program, or that begins with "
         "#! and is not for Python, is run itself; a name that is no file here is looked for on "
         "PATH. Other files are run by Python. In arguments, ${local_rank} becomes the worker's "
         "local rank and $$ becomes $.";
}

std::string_view jobs_description() {
  return "lockstep sbatch and lockstep qsub write a job script for Slurm or PBS and submit it; "
         "lockstep manifest prints a JobSet for Kubernetes. What the scheduler is to know stands "
         "before --, and what lockstep run is told after it. Ranks are warned before the time is "
         "over, and a job that ends with 75 (saved, start me again) is queued again. Each has "
         "--help.";
}

std::string_view doctor_description() {
  return "lockstep doctor says what would go wrong with a job, before it does, and what to do "
         "about "
         "it: clock, names, interfaces, limits, shared memory, disks, GPUs, NCCL and its "
         "variables. "
         "lockstep doctor --help lists its options.";
}

std::string_view stack_description() {
  return "lockstep stack shows where every rank of a running job stands, on all of its nodes, also "
         "of "
         "stopped processes; one of the job's launchers must run on this machine. JOB is the "
         "beginning "
         "of the job's id, and may be left out while only one job runs. Nodes that do not answer "
         "within "
         "the limit (20 seconds) are named. It uses gdb or eu-stack, and py-spy for Python, where "
         "they "
         "are installed, and finds the functions by itself where not.";
}

std::span<const Entry> launcher_variables() {
  return kLauncherVariables;
}
std::span<const Entry> worker_variables() {
  return kWorkerVariables;
}
std::span<const Entry> exit_statuses() {
  return kExitStatuses;
}
std::span<const Entry> examples() {
  return kExamples;
}

std::string spelled(const Option& option) {
  const std::string letter = option.letter == 0 ? "" : std::string{'-', option.letter, ',', ' '};
  const std::string value = option.takes_value() ? concat("=", option.placeholder) : "";
  return concat(letter, "--", option.name, value);
}

std::string remarks(const Option& option) {
  std::string text;
  if (!option.variable.empty()) {
    text = concat("variable ", option.variable);
  }
  if (!option.fallback.empty()) {
    text += concat(text.empty() ? "" : "; ", "default ", option.fallback);
  }
  return text;
}

std::string wrap(std::string_view text, std::size_t indent, std::size_t width) {
  std::string result;
  std::string line;
  const auto flush = [&] {
    result += concat(std::string(indent, ' '), line, "\n");
    line.clear();
  };
  for (const std::string_view word : split(text, ' ')) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > width) {
      flush();
    }
    line += concat(line.empty() ? "" : " ", word);
  }
  flush();
  return result;
}

}  // namespace lockstep
