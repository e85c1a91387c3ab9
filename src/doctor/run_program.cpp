#include "doctor/run_program.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "core/unique_fd.h"
#include "launch/terminal_text.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostOutput = std::size_t{1} << 20;

// Memory that a program can be given as a file to write to.
class OutputMemory {
 public:
  OutputMemory() : fd_(::memfd_create("lockstep doctor", MFD_CLOEXEC)) {
    if (!fd_) throw_errno("cannot make memory for a program's output");
  }

  std::string path() const { return concat("/proc/", ::getpid(), "/fd/", fd_.get()); }

  std::string text() const {
    struct stat info = {};
    ::fstat(fd_.get(), &info);
    std::string text(std::min(static_cast<std::size_t>(info.st_size), kMostOutput), '\0');
    const ssize_t count = ::pread(fd_.get(), text.data(), text.size(), 0);
    text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
    return text;
  }

 private:
  UniqueFd fd_;
};

}  // namespace

std::string ProgramOutput::last_error_line() const {
  std::size_t end = err.find_last_not_of(" \r\n");
  if (end == std::string::npos) return "it said nothing";
  const std::size_t begin = err.rfind('\n', end);
  const std::size_t first = begin == std::string::npos ? 0 : begin + 1;
  return clipped(without_controls(std::string_view(err).substr(first, end + 1 - first)), 300);
}

ProgramOutput run_program(const std::vector<std::string>& argv, std::chrono::milliseconds limit,
                          const std::map<std::string, std::string>& environment) {
  std::vector<std::string> command = {"/bin/sh", "-c", "exec \"$@\" </dev/null", "sh"};
  command.insert(command.end(), argv.begin(), argv.end());
  const OutputMemory out;
  const OutputMemory err;
  ProgramOutput result;
  try {
    Subprocess program({.argv = command,
                        .set_environment = environment,
                        .unset_environment = {"LOCKSTEP_SECRET", "LOCKSTEP_SECRET_FILE"},
                        .stdout_path = out.path(),
                        .stderr_path = err.path()});
    auto status = program.wait_for(limit);
    if (!status) {
      result.in_time = false;
      program.signal(SIGKILL);
      status = program.wait();
    }
    result.status = *status;
    result.out = out.text();
    result.err = err.text();
  } catch (const Error& error) {
    result.status.exit_code = 127;
    result.err = error.what();
  }
  return result;
}

}  // namespace lockstep
