#include "cluster/prologue.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <string_view>

#include "core/exec_process.h"
#include "core/subprocess.h"
#include "launch/option_values.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Descriptor 3 is for us: the environment at the end, or the command that failed.
constexpr std::string_view kBefore = R"(exec 3>&1 1>&2
if ! type module >/dev/null 2>&1; then
  for lockstep_file in /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh \
      "$MODULESHOME/init/bash" /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash \
      /usr/share/Modules/init/bash; do
    if [ -r "$lockstep_file" ]; then . "$lockstep_file"; break; fi
  done
  unset lockstep_file
fi
trap 'lockstep_code=$?; printf "%s" "$BASH_COMMAND" >&3; exit "$lockstep_code"' ERR
)";
constexpr std::string_view kAfter = R"(
trap - ERR
unset lockstep_code
printf 'environment\0' >&3
command -p env -0 >&3
)";
constexpr std::string_view kMark{"environment\0", 12};

struct Outcome {
  ExitStatus status;
  std::string said;
};

// Until bash ends: what it leaves in the background may hold the pipe open for ever.
Outcome run_bash(const std::string& script, const Environment& environment) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("cannot make a pipe");
  const UniqueFd from_bash(ends[0]);
  UniqueFd to_us(ends[1]);
  ::fcntl(from_bash.get(), F_SETFL, O_NONBLOCK);
  const pid_t pid =
      exec_process({.argv = {"bash", "-c", script, "prologue"},
                    .environment = {environment.variables().begin(), environment.variables().end()},
                    .working_directory = "",
                    .stdout_fd = to_us.get()});
  to_us.reset();
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  Outcome outcome;
  std::array<char, 65536> part;
  for (bool ended = false; !ended;) {
    pollfd entries[2] = {{.fd = from_bash.get(), .events = POLLIN, .revents = 0},
                         {.fd = pidfd.get(), .events = POLLIN, .revents = 0}};
    ::poll(entries, 2, -1);
    ended = entries[1].revents != 0;
    ssize_t count = 0;
    while ((count = ::read(from_bash.get(), part.data(), part.size())) > 0) {
      outcome.said.append(part.data(), static_cast<std::size_t>(count));
    }
    // All of them have closed it: nothing more will wake this up but the end.
    if (count == 0 && !ended) {
      ended = true;
    }
  }
  int raw = 0;
  while (::waitpid(pid, &raw, 0) < 0 && errno == EINTR) {
  }
  outcome.status = WIFSIGNALED(raw) ? ExitStatus{.signal = WTERMSIG(raw)}
                                    : ExitStatus{.exit_code = WEXITSTATUS(raw)};
  return outcome;
}

}  // namespace

Environment after_prologue(const std::string& lines, const Environment& environment) {
  const Outcome outcome = run_bash(concat(kBefore, lines, kAfter), environment);
  if (!outcome.status.success()) {
    const std::string command =
        outcome.said.empty() ? std::string() : concat(" at '", outcome.said, "'");
    throw SystemError(concat("--prologue failed", command, ": ", outcome.status.describe()));
  }
  if (!outcome.said.starts_with(kMark)) {
    throw SystemError("--prologue ended its shell by itself; leave 'exit' out of it");
  }
  Environment::Variables variables;
  for (const std::string_view entry :
       split(std::string_view(outcome.said).substr(kMark.size()), '\0')) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    variables[std::string(entry.substr(0, equals))] = entry.substr(equals + 1);
  }
  // bash's own.
  for (const char* name : {"_", "SHLVL", "PWD", "OLDPWD"}) {
    variables.erase(name);
    if (const auto value = environment.get(name)) variables[name] = *value;
  }
  return Environment(std::move(variables));
}

}  // namespace lockstep
