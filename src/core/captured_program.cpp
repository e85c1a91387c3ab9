#include "core/captured_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>

#include "core/exec_process.h"
#include "core/unique_fd.h"
#include "lockstep/environment.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Memory that a program writes to as to a file, so that nobody has to read while it runs.
class OutputMemory {
 public:
  OutputMemory() : fd_(::memfd_create("lockstep output", MFD_CLOEXEC)) {
    if (!fd_) throw_errno("cannot make memory for a program's output");
    ::fcntl(fd_.get(), F_SETFL, O_APPEND);
  }

  int fd() const { return fd_.get(); }

  std::string text(std::size_t most_bytes) const {
    struct stat info = {};
    ::fstat(fd_.get(), &info);
    std::string text(std::min(static_cast<std::size_t>(info.st_size), most_bytes), '\0');
    const ssize_t count = ::pread(fd_.get(), text.data(), text.size(), 0);
    text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
    return text;
  }

 private:
  UniqueFd fd_;
};

std::map<std::string, std::string> environment_of(const CaptureOptions& options) {
  const Environment own = Environment::of_process();
  std::map<std::string, std::string> variables(own.variables().begin(), own.variables().end());
  for (const std::string& name : options.unset_environment) variables.erase(name);
  for (const auto& [name, value] : options.set_environment) variables[name] = value;
  return variables;
}

bool ends_within(const UniqueFd& pidfd, std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry = {.fd = pidfd.get(), .events = POLLIN, .revents = 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
    if (ready > 0) return true;
    if (left.count() <= 0) return false;
  }
}

}  // namespace

CapturedProgram run_captured(const CaptureOptions& options) {
  const OutputMemory out;
  const OutputMemory err;
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const pid_t pid = exec_process({.argv = options.argv,
                                  .environment = environment_of(options),
                                  .working_directory = "",
                                  .stdin_fd = null.get(),
                                  .stdout_fd = out.fd(),
                                  .stderr_fd = err.fd(),
                                  .cpus = {},
                                  .ignored_signals = std::nullopt});
  // From here to waitpid() the pid is that of this child, alive or not.
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  CapturedProgram result;
  result.in_time = pidfd && ends_within(pidfd, options.limit);
  if (!result.in_time && options.grace.count() > 0) {
    ::kill(pid, SIGTERM);
    if (!pidfd || !ends_within(pidfd, options.grace)) ::kill(pid, SIGKILL);
  } else if (!result.in_time) {
    ::kill(pid, SIGKILL);
  }
  int raw = 0;
  while (::waitpid(pid, &raw, 0) < 0 && errno == EINTR) {
  }
  result.status = WIFSIGNALED(raw) ? ExitStatus{.signal = WTERMSIG(raw)}
                                   : ExitStatus{.exit_code = WEXITSTATUS(raw)};
  result.out = out.text(options.most_bytes);
  result.err = err.text(options.most_bytes);
  return result;
}

}  // namespace lockstep
