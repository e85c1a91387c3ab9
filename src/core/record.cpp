#include "lockstep/record.h"

#include <cxxabi.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "core/backtrace.h"
#include "core/crash_report.h"
#include "core/fatal_signals.h"
#include "core/throw_point.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

void report(std::string_view type, std::string_view text, std::string_view title,
            const Backtrace& backtrace) {
  static char storage[32 << 10];
  FixedText stack(storage);
  add_frames(backtrace, Names::demangled, stack);
  const Failure failure = {.type = type, .text = text, .stack_title = title, .stack = stack.view()};
  write_error_file(failure);
  print_failure(failure);
}

// Reports the exception being handled, and returns the exit code it deserves. Allocates nothing
// that it cannot do without: the exception may be a std::bad_alloc.
int report_exception(std::string_view title, const Backtrace& backtrace) {
  char storage[512];
  FixedText type(storage);
  add_short_name(*abi::__cxa_current_exception_type(), type);
  try {
    throw;
  } catch (const std::exception& error) {
    report(type.view(), error.what(), title, backtrace);
    return dynamic_cast<const InvalidArgument*>(&error) == nullptr ? kExitFailure : kExitUsage;
  } catch (...) {
    report(type.view(), "thrown, and not a std::exception", title, backtrace);
    return kExitFailure;
  }
}

// An exception that leaves a thread, or any function that must not throw, ends here. For a thread
// nothing has been unwound yet, so the stack is that of the throw.
[[noreturn]] void on_terminate() {
  if (claim_crash_report(SIGABRT) == Claim::mine) {
    Backtrace backtrace;
    capture(backtrace);
    begin_at_throw(backtrace);
    constexpr std::string_view kTitle = "C++ backtrace (most recent call first):";
    if (abi::__cxa_current_exception_type() != nullptr) {
      report_exception(kTitle, backtrace);
    } else {
      report("std::terminate", "called without an exception", kTitle, backtrace);
    }
    finish_crash_report();
  }
  std::abort();
}

int report_caught_exception() {
  // If another thread is just dying, its failure is the one that counts, and it ends the process.
  if (claim_crash_report(0) != Claim::mine) {
    return kExitFailure;
  }
  Backtrace& thrown = throw_point();
  std::string_view title = "C++ backtrace of the throw (most recent call first):";
  Backtrace caught;
  if (thrown.size > 0) {
    begin_at_throw(thrown);
  } else {
    capture(caught);
    title = "C++ backtrace of where the exception was caught; where it was thrown is not known:";
  }
  const int code = report_exception(title, thrown.size > 0 ? thrown : caught);
  finish_crash_report();
  return code;
}

class TerminateHandler {
 public:
  TerminateHandler() : before_(std::set_terminate(on_terminate)) {}
  ~TerminateHandler() { std::set_terminate(before_); }
  TerminateHandler(const TerminateHandler&) = delete;
  TerminateHandler& operator=(const TerminateHandler&) = delete;

 private:
  std::terminate_handler before_;
};

}  // namespace

int record(const std::function<int()>& program) {
  prepare_crash_report();
  forget_throw_point();
  const FatalSignals signals;
  const TerminateHandler terminate;
  try {
    return program();
  } catch (const Preempted& preempted) {
    std::fprintf(stderr, "%s\n", preempted.what());  // not a failure: nothing is recorded
    return Preempted::kExitCode;
  } catch (const ThrowPointProbe&) {
    std::abort();  // not reached: nothing is a ThrowPointProbe
  } catch (...) {
    if (std::current_exception() == nullptr) {
      throw;  // not C++'s: pthread_exit() and cancellation, which must not be stopped
    }
    return report_caught_exception();
  }
}

int record(int argc, char** argv, int (*program)(int argc, char** argv)) {
  return record([=] { return program(argc, argv); });
}

}  // namespace lockstep
