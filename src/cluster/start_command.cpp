#include "cluster/start_command.h"

#include "cluster/brief_channel.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

void append(std::vector<std::string>& words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
}

StartCommand with_ssh(const StarterOptions& options, const Host& host,
                      const std::vector<std::string>& words, const std::string& brief) {
  // No questions, which nobody would see; and the end of a machine is noticed.
  StartCommand command{.argv = {"ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o",
                                "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"}};
  append(command.argv, options.ssh_options);
  command.argv.push_back("--");
  command.argv.push_back(host.name);
  // ssh hands one line to the user's shell there.
  std::string line = concat("exec ", shell_quoted(options.lockstep));
  for (const std::string& word : words) line += concat(" ", shell_quoted(word));
  command.argv.push_back(line);
  command.input = brief + "\n";
  return command;
}

StartCommand with_srun(const StarterOptions& options, const Host& host,
                       const std::vector<std::string>& words, const std::string& brief) {
  StartCommand command{
      // A step of its own on each node: it has all of the node's processors, beside other steps of
      // the job, and its end is no other's.
      .argv = {"srun", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1",
               concat("--nodelist=", host.name), "--overlap", "--cpu-bind=none", "--quiet",
               options.export_all ? std::string("--export=ALL")
                                  : concat("--export=", kBriefVariable),
               options.lockstep},
      .set_environment = {{kBriefVariable, brief}},
      // What sbatch was told about the tasks of the job must not decide about this one.
      .unset_environment = {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE",
                            "SLURM_TASKS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU",
                            "SLURM_GPU_BIND", "SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE",
                            "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_VERBOSE", "SLURM_MEM_BIND",
                            "SLURM_HINT", "SLURM_THREADS_PER_CORE", "SLURM_ARBITRARY_NODELIST",
                            "SLURM_STEP_ID"},
      // srun itself would leave the step behind; it passes the end of its input on.
      .dies_with_parent = false};
  append(command.argv, words);
  return command;
}

StartCommand with_pbsdsh(const StarterOptions& options, const Host& host,
                         const std::vector<std::string>& words, const std::string& brief,
                         int number) {
  if (!host.task_index) {
    throw InvalidArgument(concat("--starter is pbsdsh, but '", host.name,
                                 "' is not a machine of this PBS job: use --starter ssh"));
  }
  const std::string file = concat(options.brief_prefix, number);
  StartCommand command{
      .argv = {"pbsdsh", "-n", std::to_string(*host.task_index), "--", options.lockstep},
      .has_input = false,
      .brief_file = file,
      .brief = brief};
  append(command.argv, words);
  append(command.argv, {kBriefFileOption, file});
  return command;
}

}  // namespace

std::string_view to_string(StarterKind kind) {
  switch (kind) {
    case StarterKind::ssh:
      return "ssh";
    case StarterKind::srun:
      return "srun";
    case StarterKind::pbsdsh:
      return "pbsdsh";
    case StarterKind::local:
      return "local";
  }
  return "";
}

StarterKind starter_kind(std::string_view name) {
  for (const StarterKind kind :
       {StarterKind::ssh, StarterKind::srun, StarterKind::pbsdsh, StarterKind::local}) {
    if (to_string(kind) == name) return kind;
  }
  throw InvalidArgument(concat("--starter is '", name, "'; it must be ssh, srun, pbsdsh or local"));
}

StartCommand start_command(const StarterOptions& options, const Host& host,
                           const std::vector<std::string>& words, const std::string& brief,
                           int number) {
  switch (options.kind) {
    case StarterKind::ssh:
      return with_ssh(options, host, words, brief);
    case StarterKind::srun:
      return with_srun(options, host, words, brief);
    case StarterKind::pbsdsh:
      return with_pbsdsh(options, host, words, brief, number);
    case StarterKind::local:
      break;
  }
  StartCommand command{.argv = {options.lockstep}, .input = brief + "\n"};
  append(command.argv, words);
  return command;
}

std::vector<std::string> shell_words(std::string_view line, const std::string& option) {
  std::vector<std::string> words;
  std::string word;
  bool begun = false;
  char quote = 0;
  for (std::size_t at = 0; at < line.size(); ++at) {
    const char c = line[at];
    if (quote == 0 && (c == ' ' || c == '\t' || c == '\n')) {
      if (begun) words.push_back(std::move(word));
      word.clear();
      begun = false;
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
      begun = true;
    } else if (quote != 0 && c == quote) {
      quote = 0;
    } else if (c == '\\' && quote != '\'' && at + 1 < line.size()) {
      word += line[++at];
      begun = true;
    } else {
      word += c;
      begun = true;
    }
  }
  if (quote != 0) {
    throw InvalidArgument(concat(option, " is '", line, "'; a quote in it is not closed"));
  }
  if (begun) words.push_back(std::move(word));
  return words;
}

std::string shell_quoted(std::string_view word) {
  static constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(word);
  }
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace lockstep
