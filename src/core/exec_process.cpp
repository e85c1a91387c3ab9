#include "core/exec_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/environment.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr unsigned kCloseRangeCloexec = 1U << 2;  // CLOSE_RANGE_CLOEXEC, newer than some headers

// All that the child needs, made before it exists: between vfork and exec it shares this process's
// memory and, as other threads may hold any lock, must not allocate.
struct Plan {
  const char* program;
  char* const* argv;
  char* const* environment;
  int stdout_fd;  // -1: inherit
  int stderr_fd;
  int failure_fd;  // takes errno if the program cannot be started
  bool die_with_parent;
  pid_t parent;
};

[[noreturn]] void fail_in_child(const Plan& plan) {
  const int code = errno;
  // If the parent cannot be told, it takes the exit for the program's own.
  [[maybe_unused]] const auto written = ::write(plan.failure_fd, &code, sizeof code);
  ::_exit(127);
}

void set_default(int number) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  ::sigaction(number, &action, nullptr);
}

// A handler of ours would run in the child, on memory that is still the parent's. So all signals
// are blocked until here; what has a handler gets its default before they are let in again.
void reset_signals() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction current = {};
    if (::sigaction(number, nullptr, &current) == 0 && current.sa_handler != SIG_DFL &&
        current.sa_handler != SIG_IGN) {
      set_default(number);
    }
  }
  // Libraries ignore SIGPIPE for their own sake; a program expects to die of it.
  set_default(SIGPIPE);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void run_child(const Plan& plan) {
  if (plan.die_with_parent) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
      fail_in_child(plan);
    }
    // The parent may have died before the kernel knew that we care.
    if (::getppid() != plan.parent) {
      ::_exit(127);
    }
  }
  if ((plan.stdout_fd >= 0 && ::dup2(plan.stdout_fd, STDOUT_FILENO) < 0) ||
      (plan.stderr_fd >= 0 && ::dup2(plan.stderr_fd, STDERR_FILENO) < 0)) {
    fail_in_child(plan);
  }
  // Not every library opens its sockets with O_CLOEXEC. A worker that held one open would keep a
  // peer from seeing this process's end. Kernels before 5.11 refuse, and there it stays as it is.
  ::syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, kCloseRangeCloexec);
  reset_signals();
  ::execve(plan.program, plan.argv, plan.environment);
  fail_in_child(plan);
}

// In a function of its own, so that the child, which runs on this stack frame, changes nothing
// that the parent reads after it.
pid_t vfork_and_run(const Plan& plan) {
  const pid_t pid = ::vfork();
  if (pid == 0) {
    run_child(plan);
  }
  return pid;
}

pid_t start_child(const Plan& plan) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = vfork_and_run(plan);
  const int code = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = code;
  return pid;
}

// Moves a descriptor out of the way of the standard three, where the child's dup2 would overwrite
// it. It gets there when this process runs with one of them closed.
UniqueFd above_standard(UniqueFd fd) {
  if (!fd || fd.get() > STDERR_FILENO) {
    return fd;
  }
  UniqueFd moved(::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!moved) {
    throw_errno("cannot duplicate a descriptor");
  }
  return moved;
}

UniqueFd open_output(const std::string& path) {
  if (path.empty()) {
    return UniqueFd();
  }
  // Append mode lets standard output and error share a file without overwriting each other.
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) {
    throw_errno(concat("cannot open '", path, "' for a program's output"));
  }
  return above_standard(std::move(fd));
}

void check_text(std::string_view what, const std::string& text) {
  if (text.find('\0') != std::string::npos) {
    throw InvalidArgument(concat("Subprocess: ", what, " '", text.c_str(),
                                 "' contains a zero byte; no program can receive one"));
  }
}

void check_name(const std::string& name) {
  check_text("the variable", name);
  if (name.empty() || name.find('=') != std::string::npos) {
    throw InvalidArgument(concat("Subprocess: '", name, "' cannot be a variable's name"));
  }
}

Environment::Variables new_environment(const SubprocessOptions& options) {
  Environment::Variables variables = Environment::of_process().variables();
  for (const std::string& name : options.unset_environment) {
    check_name(name);
    variables.erase(name);
  }
  for (const auto& [name, value] : options.set_environment) {
    check_name(name);
    check_text(concat("the value of ", name), value);
    variables[name] = value;
  }
  return variables;
}

bool is_program(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

// Where the program is. Looked up here and not by execvp, which allocates and knows only this
// process's PATH.
std::string find_program(const std::string& name, const Environment::Variables& environment) {
  if (name.find('/') != std::string::npos) {
    return name;
  }
  const auto found = environment.find("PATH");
  const std::string path = found == environment.end() ? "/bin:/usr/bin" : found->second;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::string folder = path.substr(begin, path.find(':', begin) - begin);
    begin += folder.size() + 1;
    const std::string candidate = concat(folder.empty() ? "." : folder, "/", name);
    if (is_program(candidate)) {
      return candidate;
    }
  }
  throw SystemError(concat("cannot start '", name, "': no such program on PATH '", path, "'"));
}

// The form that execve takes. The strings must outlive the result.
std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (std::string& text : strings) {
    result.push_back(text.data());
  }
  result.push_back(nullptr);
  return result;
}

// The errno with which the child failed; 0 if it became the program.
int read_failure(int fd) {
  int code = 0;
  ssize_t count = 0;
  do {
    count = ::read(fd, &code, sizeof code);
  } while (count < 0 && errno == EINTR);
  return count == sizeof code ? code : 0;
}

}  // namespace

pid_t exec_process(const SubprocessOptions& options) {
  if (options.argv.empty() || options.argv[0].empty()) {
    throw InvalidArgument("Subprocess: argv is empty; its first entry is the program");
  }
  std::vector<std::string> arguments = options.argv;
  for (const std::string& argument : arguments) {
    check_text("the argument", argument);
  }
  check_text("stdout_path", options.stdout_path);
  check_text("stderr_path", options.stderr_path);

  const Environment::Variables variables = new_environment(options);
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) {
    entries.push_back(concat(name, "=", value));
  }
  const std::string program = find_program(options.argv[0], variables);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> environment = pointers(entries);
  const UniqueFd stdout_fd = open_output(options.stdout_path);
  const UniqueFd stderr_fd = open_output(options.stderr_path);

  // Both ends close at exec, so reading ends without a word when the program has started.
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw_errno(concat("cannot start '", options.argv[0], "'"));
  }
  UniqueFd failure_read(ends[0]);
  UniqueFd failure_write = above_standard(UniqueFd(ends[1]));

  const pid_t pid = start_child({.program = program.c_str(),
                                 .argv = argv.data(),
                                 .environment = environment.data(),
                                 .stdout_fd = stdout_fd.get(),
                                 .stderr_fd = stderr_fd.get(),
                                 .failure_fd = failure_write.get(),
                                 .die_with_parent = options.die_with_parent,
                                 .parent = ::getpid()});
  if (pid < 0) {
    throw_errno(concat("cannot start '", options.argv[0], "'"));
  }
  failure_write.reset();
  if (const int code = read_failure(failure_read.get()); code != 0) {
    ::waitpid(pid, nullptr, 0);
    errno = code;
    throw_errno(concat("cannot start '", program, "'"));
  }
  return pid;
}

}  // namespace lockstep
