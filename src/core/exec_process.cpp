#include "core/exec_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

namespace lockstep {
namespace {

constexpr unsigned kCloseRangeCloexec = 1U << 2;  // CLOSE_RANGE_CLOEXEC, newer than some headers

enum class Step { session, parent, output, folder, cpus, program };

struct StartFailure {
  Step step;
  int code;
};

// All that the child needs, made before it exists: between vfork and exec it shares this process's
// memory and, as other threads may hold any lock, must not allocate.
struct Plan {
  const char* program;
  char* const* argv;
  char* const* environment;
  const char* folder;  // nullptr: stay
  int stdin_fd;        // -1: inherit
  int stdout_fd;
  int stderr_fd;
  int failure_fd;  // takes a StartFailure if the program cannot be started
  bool die_with_parent;
  bool new_session;
  pid_t parent;
  const unsigned long* cpu_mask;  // nullptr: leave
  std::size_t cpu_mask_bytes;
  const sigset_t* ignored;  // nullptr: as they are
};

[[noreturn]] void fail_in_child(const Plan& plan, Step step) {
  const StartFailure failure = {.step = step, .code = errno};
  // If the parent cannot be told, it takes the exit for the program's own.
  [[maybe_unused]] const auto written = ::write(plan.failure_fd, &failure, sizeof failure);
  ::_exit(127);
}

void set_disposition(int number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  ::sigaction(number, &action, nullptr);
}

// A handler of ours would run in the child, on memory that is still the parent's. So all signals
// are blocked until here; what has a handler gets its default before they are let in again.
void reset_signals(const sigset_t* ignored) {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction current = {};
    if (::sigaction(number, nullptr, &current) != 0) {
      continue;
    }
    if (ignored != nullptr) {
      set_disposition(number, ::sigismember(ignored, number) == 1 ? SIG_IGN : SIG_DFL);
    } else if (current.sa_handler != SIG_IGN || number == SIGPIPE) {
      // Libraries ignore SIGPIPE for their own sake; a program expects to die of it.
      set_disposition(number, SIG_DFL);
    }
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void run_child(const Plan& plan) {
  if (plan.new_session && ::setsid() < 0) {
    fail_in_child(plan, Step::session);
  }
  if (plan.die_with_parent) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
      fail_in_child(plan, Step::parent);
    }
    // The parent may have died before the kernel knew that we care.
    if (::getppid() != plan.parent) {
      ::_exit(127);
    }
  }
  if ((plan.stdin_fd >= 0 && ::dup2(plan.stdin_fd, STDIN_FILENO) < 0) ||
      (plan.stdout_fd >= 0 && ::dup2(plan.stdout_fd, STDOUT_FILENO) < 0) ||
      (plan.stderr_fd >= 0 && ::dup2(plan.stderr_fd, STDERR_FILENO) < 0)) {
    fail_in_child(plan, Step::output);
  }
  if (plan.folder != nullptr && ::chdir(plan.folder) != 0) {
    fail_in_child(plan, Step::folder);
  }
  if (plan.cpu_mask != nullptr &&
      ::syscall(SYS_sched_setaffinity, 0, plan.cpu_mask_bytes, plan.cpu_mask) != 0) {
    fail_in_child(plan, Step::cpus);
  }
  // Not every library opens its sockets with O_CLOEXEC. A worker that held one open would keep a
  // peer from seeing this process's end. Kernels before 5.11 refuse, and there it stays as it is.
  ::syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, kCloseRangeCloexec);
  reset_signals(plan.ignored);
  ::execve(plan.program, plan.argv, plan.environment);
  fail_in_child(plan, Step::program);
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

// A copy that is out of the way of the standard three, which the child's dup2 overwrites.
UniqueFd above_standard(int fd) {
  UniqueFd moved(::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!moved) {
    throw_errno(concat("cannot duplicate descriptor ", fd, " for a program"));
  }
  return moved;
}

// Only a descriptor among the standard three, which the child overwrites, needs a copy.
UniqueFd copy_if_in_the_way(int fd) {
  return fd >= 0 && fd <= STDERR_FILENO ? above_standard(fd) : UniqueFd();
}

void check_text(std::string_view what, const std::string& text) {
  if (text.find('\0') != std::string::npos) {
    throw InvalidArgument(concat("Subprocess: ", what, " '", text.c_str(),
                                 "' contains a zero byte; no program can receive one"));
  }
}

void check_spec(const ProcessSpec& spec) {
  if (spec.argv.empty() || spec.argv[0].empty()) {
    throw InvalidArgument("Subprocess: argv is empty; its first entry is the program");
  }
  for (const std::string& argument : spec.argv) {
    check_text("the argument", argument);
  }
  check_text("the working directory", spec.working_directory);
  for (const auto& [name, value] : spec.environment) {
    check_text("the variable", name);
    if (name.find('=') != std::string::npos) {
      throw InvalidArgument(concat("Subprocess: '", name, "' cannot be a variable's name"));
    }
    check_text(concat("the value of ", name), value);
  }
}

// A path as the program will see it from its working directory, seen from here.
std::string from_here(const ProcessSpec& spec, const std::string& path) {
  return spec.working_directory.empty() || path.starts_with('/')
             ? path
             : concat(spec.working_directory, "/", path);
}

bool is_program(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

// Where the program is. Looked up here and not by execvp, which allocates and knows only this
// process's PATH.
std::string find_program(const ProcessSpec& spec) {
  const std::string& name = spec.argv[0];
  if (name.find('/') != std::string::npos) {
    return name;
  }
  const auto found = spec.environment.find("PATH");
  const std::string path = found == spec.environment.end() ? "/bin:/usr/bin" : found->second;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::string folder = path.substr(begin, path.find(':', begin) - begin);
    begin += folder.size() + 1;
    const std::string candidate = concat(folder.empty() ? "." : folder, "/", name);
    if (is_program(from_here(spec, candidate))) {
      return candidate;
    }
  }
  throw StartError(concat("cannot start '", name, "': no such program on PATH '", path, "'"),
                   ENOENT);
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

// The form that the kernel takes; empty for "leave".
std::vector<unsigned long> cpu_mask(const std::vector<int>& cpus) {
  constexpr int kBits = std::numeric_limits<unsigned long>::digits;
  constexpr int kMost = 1 << 16;  // more than any kernel has, and no memory to speak of
  std::vector<unsigned long> mask;
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= kMost) {
      throw InvalidArgument(concat("Subprocess: there cannot be a CPU ", cpu));
    }
    const std::size_t word = static_cast<std::size_t>(cpu / kBits);
    mask.resize(std::max(mask.size(), word + 1));
    mask[word] |= 1UL << (cpu % kBits);
  }
  return mask;
}

std::string list(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) {
    text += concat(text.empty() ? "" : ",", number);
  }
  return text;
}

// What is not plain from errno's own text.
std::string hint(const ProcessSpec& spec, const std::string& program, int code) {
  const std::string path = from_here(spec, program);
  struct stat info = {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  switch (code) {
    case ENOENT:
      return exists ? " (the file is there; the interpreter in its first line, or the loader that "
                      "it was linked for, is not)"
                    : "";
    case EACCES:
      if (exists && !S_ISREG(info.st_mode)) {
        return " (it is not a file)";
      }
      return exists && ::access(path.c_str(), X_OK) != 0 ? " (the file is not executable)" : "";
    case ENOEXEC:
      return " (it is neither a binary for this machine nor begins with '#!')";
    case E2BIG:
      return " (arguments and environment together are too large)";
    default:
      return "";
  }
}

[[noreturn]] void throw_failure(const ProcessSpec& spec, const std::string& program,
                                const StartFailure& failure) {
  const std::string reason = std::strerror(failure.code);
  const std::string start = concat("cannot start '", program, "'");
  switch (failure.step) {
    case Step::folder:
      throw StartError(concat(start, " in folder '", spec.working_directory, "': ", reason),
                       failure.code);
    case Step::cpus:
      throw StartError(concat(start, " on CPUs ", list(spec.cpus), ": ", reason,
                              failure.code == EINVAL ? " (none of them may be used here)" : ""),
                       failure.code);
    case Step::output:
      throw StartError(concat(start, ": its input and output cannot be set up: ", reason),
                       failure.code);
    case Step::session:
    case Step::parent:
      throw StartError(concat(start, " as a process that ends with this one: ", reason),
                       failure.code);
    case Step::program:
      break;
  }
  throw StartError(concat(start, ": ", reason, hint(spec, program, failure.code)), failure.code);
}

// How the child failed; std::nullopt if it became the program.
std::optional<StartFailure> read_failure(int fd) {
  StartFailure failure = {};
  ssize_t count = 0;
  do {
    count = ::read(fd, &failure, sizeof failure);
  } while (count < 0 && errno == EINTR);
  return count == sizeof failure ? std::optional(failure) : std::nullopt;
}

sigset_t to_set(const std::vector<int>& numbers) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : numbers) {
    ::sigaddset(&set, number);
  }
  return set;
}

}  // namespace

pid_t exec_process(const ProcessSpec& spec) {
  check_spec(spec);
  std::vector<std::string> arguments = spec.argv;
  std::vector<std::string> entries;
  entries.reserve(spec.environment.size());
  for (const auto& [name, value] : spec.environment) {
    entries.push_back(name + "=" + value);
  }
  const std::string program = find_program(spec);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> environment = pointers(entries);
  const std::vector<unsigned long> mask = cpu_mask(spec.cpus);
  const sigset_t ignored = to_set(spec.ignored_signals.value_or(std::vector<int>()));
  const UniqueFd stdin_copy = copy_if_in_the_way(spec.stdin_fd);
  const UniqueFd stdout_copy = copy_if_in_the_way(spec.stdout_fd);
  const UniqueFd stderr_copy = copy_if_in_the_way(spec.stderr_fd);

  // Both ends close at exec, so reading ends without a word when the program has started.
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    const int code = errno;
    throw StartError(concat("cannot start '", program, "': ", std::strerror(code)), code);
  }
  UniqueFd failure_read(ends[0]);
  UniqueFd failure_write(ends[1]);
  if (UniqueFd copy = copy_if_in_the_way(failure_write.get())) {
    failure_write = std::move(copy);
  }

  const pid_t pid = start_child(
      {.program = program.c_str(),
       .argv = argv.data(),
       .environment = environment.data(),
       .folder = spec.working_directory.empty() ? nullptr : spec.working_directory.c_str(),
       .stdin_fd = stdin_copy ? stdin_copy.get() : spec.stdin_fd,
       .stdout_fd = stdout_copy ? stdout_copy.get() : spec.stdout_fd,
       .stderr_fd = stderr_copy ? stderr_copy.get() : spec.stderr_fd,
       .failure_fd = failure_write.get(),
       .die_with_parent = spec.die_with_parent,
       .new_session = spec.new_session,
       .parent = ::getpid(),
       .cpu_mask = mask.empty() ? nullptr : mask.data(),
       .cpu_mask_bytes = mask.size() * sizeof(unsigned long),
       .ignored = spec.ignored_signals ? &ignored : nullptr});
  if (pid < 0) {
    const int code = errno;
    throw StartError(concat("cannot start '", program, "': ", std::strerror(code)), code);
  }
  failure_write.reset();
  if (const std::optional<StartFailure> failure = read_failure(failure_read.get())) {
    ::waitpid(pid, nullptr, 0);
    throw_failure(spec, program, *failure);
  }
  return pid;
}

UniqueFd open_output_file(const std::string& path) {
  if (path.empty()) {
    return UniqueFd();
  }
  check_text("the path of its output", path);
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) {
    const int code = errno;
    throw StartError(
        concat("cannot open '", path, "' for a program's output: ", std::strerror(code)), code);
  }
  return fd;
}

}  // namespace lockstep
