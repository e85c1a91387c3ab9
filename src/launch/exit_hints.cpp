#include <csignal>

#include "core/signal_names.h"
#include "launch/failure_report.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr int kSignalBase =
    128;                     // a shell's exit code for a program that died of signal n: 128 + n
constexpr int kResume = 75;  // EX_TEMPFAIL: "saved, resume me"
constexpr int kCannotExecute = 126;
constexpr int kNotFound = 127;

std::string hint_for_signal(int signal) {
  switch (signal) {
    case SIGKILL:
      return "Something outside the job killed it. Often that is the kernel, when memory runs out: "
             "look for its pid in `dmesg -T | grep -i 'killed process'` or `journalctl -k`, and in "
             "a "
             "container or a batch job at the memory limit.";
    case SIGSEGV:
      return "Native code touched memory that is not there. PYTHONFAULTHANDLER=1 shows the Python "
             "stack; lockstep::record prints a C++ one; `ulimit -c unlimited` leaves a core file.";
    case SIGBUS:
      return "Memory that is backed by a file could not be had. Often /dev/shm is full, which data "
             "loaders use: look at `df -h /dev/shm`; for Docker, raise --shm-size.";
    case SIGABRT:
      return "It aborted itself: an assertion, an uncaught C++ exception or a watchdog. Its last "
             "lines above usually say which.";
    case SIGILL:
      return "It met an instruction that this processor lacks: it was built for a newer one.";
    case SIGFPE:
      return "Native code divided an integer by zero or overflowed.";
    case SIGXCPU:
      return "It used up its limit of processor time (`ulimit -t`).";
    case SIGXFSZ:
      return "It wrote a file beyond the limit of file size (`ulimit -f`).";
    case SIGPIPE:
      return "It wrote to a pipe or socket that nobody reads any more.";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
    case SIGQUIT:
      return "Somebody else sent this signal to the worker: the launcher did not.";
    default:
      return "";
  }
}

}  // namespace

std::string hint_for(const ExitStatus& status) {
  if (status.signal != 0) return hint_for_signal(status.signal);
  switch (status.exit_code) {
    case kResume:
      return "This code means that the program saved its state and asks to be started again.";
    case kCannotExecute:
      return "This code usually means that the program was found and could not be executed.";
    case kNotFound:
      return "This code usually means that a program was not found, or a shared library.";
    default:
      break;
  }
  const int signal = status.exit_code - kSignalBase;
  if (signal <= 0 || signal >= NSIG) return "";
  const std::string more = hint_for_signal(signal);
  return concat("A shell says so when its program died of ", signal_name(signal), ".",
                more.empty() ? "" : " ", more);
}

int exit_code_for(const ExitStatus& status) {
  return status.signal != 0 ? kSignalBase + status.signal : status.exit_code;
}

}  // namespace lockstep
