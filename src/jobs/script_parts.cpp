#include "jobs/script_parts.h"

#include "cluster/start_command.h"
#include "launch/messages.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kColumns = 100;

}  // namespace

std::string shell_command(const std::vector<std::string>& words) {
  std::string text;
  std::size_t column = 0;
  for (const std::string& word : words) {
    const std::string quoted = shell_quoted(word);
    if (!text.empty() && column + 1 + quoted.size() > kColumns) {
      text += " \\\n ";
      column = 1;
    }
    text += concat(text.empty() ? "" : " ", quoted);
    column += 1 + quoted.size();
  }
  return text;
}

std::string script_head(const JobOptions& options) {
  return options.modules.empty() ? "#!/bin/bash\n" : "#!/bin/bash -l\n";
}

std::string preparation(const JobOptions& options) {
  std::string text;
  for (const std::string& module : options.modules) {
    text += concat("module load ", shell_quoted(module), " || exit\n");
  }
  if (options.venv)
    text += concat(". ", shell_quoted(*options.venv + "/bin/activate"), " || exit\n");
  for (const auto& [name, value] : options.environment) {
    text += concat("export ", name, "=", shell_quoted(value), "\n");
  }
  if (!options.environment.empty()) {
    // The launcher gives other machines what it is told to; its own --export goes before this.
    std::string names;
    for (const auto& [name, value] : options.environment) {
      names += concat(names.empty() ? "" : ",", name);
    }
    text += concat("export LOCKSTEP_EXPORT=", names, "\n");
  }
  for (const std::string& lines : options.setup) text += lines + "\n";
  return text;
}

std::vector<std::string> run_command_of(const JobOptions& options) {
  std::vector<std::string> words{options.lockstep, "run", "--nnodes=auto"};
  // The lines of PBS's nodefile are processors here, and not workers.
  if (options.kind == JobKind::qsub) words.emplace_back("--nproc-per-node=1");
  words.insert(words.end(), options.run_words.begin(), options.run_words.end());
  return words;
}

std::string run_and_wait(const JobOptions& options) {
  return concat(shell_command(run_command_of(options)), R"( &
launcher=$!
heard=1
while [ "$heard" -eq 1 ]; do  # a signal interrupts the wait
  heard=0
  wait "$launcher"
  code=$?
done
)");
}

std::string resume_code() {
  return concat(kResumeCode);
}

}  // namespace lockstep
