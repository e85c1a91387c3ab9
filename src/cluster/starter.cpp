#include "cluster/starter.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "core/exec_process.h"
#include "lockstep/environment.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::map<std::string, std::string> environment_of(const StartCommand& command) {
  const Environment own = Environment::of_process();
  std::map<std::string, std::string> variables(own.variables().begin(), own.variables().end());
  // A secret that was given to this process is in the brief, for those who need it.
  std::erase_if(variables,
                [](const auto& entry) { return entry.first.starts_with("LOCKSTEP_SECRET"); });
  for (const std::string& name : command.unset_environment) variables.erase(name);
  for (const auto& [name, value] : command.set_environment) variables[name] = value;
  return variables;
}

void write_brief_file(const std::string& path, const std::string& text) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) throw_errno(concat("cannot write the brief '", path, "'"));
  std::string_view left = text;
  while (!left.empty()) {
    const ssize_t count = ::write(file.get(), left.data(), left.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno(concat("cannot write the brief '", path, "'"));
    left.remove_prefix(static_cast<std::size_t>(count));
  }
  if (::fsync(file.get()) != 0) throw_errno(concat("cannot write the brief '", path, "'"));
}

}  // namespace

Starter::Starter(EventLoop& loop, const StartCommand& command, const Output& output,
                 std::function<void(const ExitStatus&)> ended)
    : loop_(loop), ended_(std::move(ended)) {
  UniqueFd input;
  if (command.has_input) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("cannot make a pipe");
    input = UniqueFd(ends[0]);
    input_ = UniqueFd(ends[1]);
    ::fcntl(input_.get(), F_SETFL, O_NONBLOCK);
    unwritten_ = command.input;
  } else {
    input = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  if (!command.brief_file.empty()) {
    write_brief_file(command.brief_file, command.brief);
    brief_file_ = command.brief_file;
  }
  try {
    pid_ = exec_process({.argv = command.argv,
                         .environment = environment_of(command),
                         .working_directory = "",
                         .stdin_fd = input.get(),
                         .stdout_fd = output.stdout_fd,
                         .stderr_fd = output.stderr_fd,
                         .die_with_parent = command.dies_with_parent,
                         .new_session = true,
                         .cpus = {},
                         .ignored_signals = std::nullopt});
  } catch (...) {
    if (!brief_file_.empty()) ::unlink(brief_file_.c_str());
    throw;
  }
  pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_) {
    const int code = errno;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    errno = code;
    throw_errno(concat("cannot watch '", command.argv[0], "'"));
  }
  loop_.watch(pidfd_.get(), EPOLLIN, [this](std::uint32_t) { on_end(); });
  write_input();
}

Starter::~Starter() {
  hang_up();
  if (!brief_file_.empty()) ::unlink(brief_file_.c_str());
  if (!pidfd_) return;
  loop_.unwatch(pidfd_.get());
  ::kill(pid_, SIGKILL);  // not waited for yet: it is ours
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Starter::hang_up() {
  if (watches_input_) loop_.unwatch(input_.get());
  watches_input_ = false;
  input_.reset();
}

// What the pipe does not take at once goes when it has room; SIGPIPE is ignored in the head.
void Starter::write_input() {
  while (input_ && !unwritten_.empty()) {
    const ssize_t count = ::write(input_.get(), unwritten_.data(), unwritten_.size());
    if (count > 0) {
      unwritten_.erase(0, static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      if (!watches_input_) {
        loop_.watch(input_.get(), EPOLLOUT, [this](std::uint32_t) { write_input(); });
      }
      watches_input_ = true;
      return;
    } else if (errno != EINTR) {
      return hang_up();  // nobody reads it: how the process ends will say why
    }
  }
  if (watches_input_) loop_.unwatch(input_.get());
  watches_input_ = false;
}

void Starter::on_end() {
  loop_.unwatch(pidfd_.get());
  pidfd_.reset();
  int raw = 0;
  while (::waitpid(pid_, &raw, 0) < 0 && errno == EINTR) {
  }
  hang_up();
  const auto ended = std::move(ended_);
  ended(WIFSIGNALED(raw) ? ExitStatus{.signal = WTERMSIG(raw)}
                         : ExitStatus{.exit_code = WEXITSTATUS(raw)});
}

}  // namespace lockstep
