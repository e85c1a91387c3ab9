// The command `lockstep`.
#include <unistd.h>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "archive/snapshot_command.h"
#include "board/board_access.h"
#include "board/top_command.h"
#include "cluster/agent_command.h"
#include "cluster/cluster_run.h"
#include "doctor/doctor_command.h"
#include "jobs/job_command.h"
#include "launch/completion.h"
#include "launch/man_page.h"
#include "launch/manual_text.h"
#include "launch/option_table.h"
#include "launch/stack_of_job.h"
#include "lockstep/environment.h"
#include "lockstep/error.h"
#include "version_command.h"

namespace {

using lockstep::Environment;
using lockstep::InvalidArgument;
using lockstep::JobKind;
using lockstep::LaunchCommand;

constexpr std::array<lockstep::Entry, 13> kCommands{{
    {"run", "start the workers of a job, as torchrun does"},
    {"launch", "the same with the manners of torch.distributed.launch"},
    {"stack", "show where every rank of a running job stands"},
    {"sbatch", "write a job script for Slurm, and submit it"},
    {"qsub", "the same for PBS and Torque"},
    {"manifest", "print a Kubernetes JobSet for a job"},
    {"doctor", "say what would go wrong with a job here, and the cure"},
    {"board", "show runs as a page in a browser: curves, ranks, events, logs"},
    {"top", "show runs at a glance in the terminal"},
    {"snapshot", "list, inspect, verify, convert and compare snapshots and .pt files"},
    {"completion", "print the completions for bash, zsh or fish"},
    {"man", "print the manual page"},
    {"version", "print the version and what is built in; --json: for programs"},
}};

std::vector<lockstep::CommandManual> command_manuals() {
  return {lockstep::board_manual(), lockstep::top_manual(), lockstep::snapshot_manual()};
}

std::string usage() {
  std::string text = "usage: lockstep <command> [options]\n\n";
  for (const lockstep::Entry& command : kCommands) {
    std::string name(command.term);
    name.resize(12, ' ');
    text += lockstep::concat("  ", name, command.text, "\n");
  }
  return text + "\n`lockstep run --help` lists all options.\n";
}

// The page is a program of its own beside this one: its HTTP library would make every start of the
// launcher slower. Returns only where that cannot be started.
int start_board(const std::vector<std::string>& arguments) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = (self.parent_path() / "lockstep-board").string();
  std::vector<char*> words{const_cast<char*>(program.c_str())};
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execv(program.c_str(), words.data());
  throw lockstep::SystemError(lockstep::concat(
      "cannot start ", program, " (", std::strerror(errno), "): it belongs beside this program; ",
      "where it was not built, install libcpp-httplib-dev and libjs-dygraphs, and build again"));
}

// What a word with a letter too many, or cut short, may stand for.
std::string meant(const std::string& word) {
  for (const lockstep::Entry& command : kCommands) {
    const std::string name(command.term);
    if (word.starts_with(name) || (word.size() > 1 && name.starts_with(word))) {
      return lockstep::concat("did you mean ", name, "? ");
    }
  }
  return "";
}

// The exit code, where what was said has been written: a job script that is cut short because a
// disk is full must not look whole.
int unless_unwritten(int code) {
  std::cout.flush();
  const bool written = std::cout.good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written) return code;
  std::fprintf(stderr, "lockstep: standard output cannot be written: %s\n", std::strerror(errno));
  return code != 0 ? code : 1;
}

int dispatch(const std::string& command, const std::vector<std::string>& arguments) {
  const Environment environment = Environment::of_process();
  if (command == "run" || command == "launch") {
    const auto kind = command == "run" ? LaunchCommand::run : LaunchCommand::launch;
    return lockstep::cluster_run(kind, arguments, environment, LOCKSTEP_VERSION);
  }
  // Not in the list: nobody types it.
  if (command == "agent") {
    return lockstep::agent_command(arguments, environment, LOCKSTEP_VERSION);
  }
  if (command == "stack") return lockstep::stack_of_job(arguments, environment, std::cout);
  if (command == "doctor") {
    const int code = lockstep::doctor_command(arguments, environment, LOCKSTEP_VERSION, std::cout);
    // A thread that waits for what hangs was left behind: nothing is taken from under it.
    std::quick_exit(unless_unwritten(code));
  }
  for (const JobKind kind : {JobKind::sbatch, JobKind::qsub, JobKind::manifest}) {
    if (command == to_string(kind)) return lockstep::job_command(kind, arguments, std::cout);
  }
  if (command == "board") return start_board(arguments);
  if (command == "top") return lockstep::top_command(arguments, std::cout);
  if (command == "snapshot") return lockstep::snapshot_command(arguments, std::cout);
  if (command == "completion") {
    if (arguments.size() != 1)
      throw InvalidArgument("completion takes one shell: bash, zsh or fish");
    std::vector<std::string> words{lockstep::doctor_option_words()};
    std::vector<lockstep::Entry> more{{"doctor", ""}};
    for (const lockstep::CommandManual& manual : command_manuals()) {
      words.push_back(lockstep::completion_words(manual));
      more.push_back({manual.name, ""});
    }
    for (std::size_t i = 0; i < more.size(); ++i) more[i].text = words[i];
    std::fputs(lockstep::completion_script(arguments[0], kCommands, more).c_str(), stdout);
    return 0;
  }
  if (command == "man") {
    std::fputs(lockstep::man_page(LOCKSTEP_VERSION, command_manuals()).c_str(), stdout);
    return 0;
  }
  if (command == "version" || command == "--version") {
    std::fputs(version_text(LOCKSTEP_VERSION, arguments).c_str(), stdout);
    return 0;
  }
  if (command == "help" || command == "--help" || command == "-h") {
    std::fputs(usage().c_str(), stdout);
    return 0;
  }
  throw InvalidArgument(lockstep::concat("there is no command '", command, "'; ", meant(command),
                                         "`lockstep --help` lists them"));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::fputs(usage().c_str(), stderr);
    return 2;
  }
  const std::string command = argv[1];
  const int code = dispatch(command, {argv + 2, argv + argc});
  const bool is_a_jobs = command == "run" || command == "launch" || command == "agent";
  return is_a_jobs ? code : unless_unwritten(code);
} catch (const InvalidArgument& error) {
  std::fprintf(stderr, "lockstep: %s\n", error.what());
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "lockstep: %s\n", error.what());
  return 1;
}
