#pragma once

#include <functional>

namespace lockstep {

/// Runs a program's main and leaves a record of how it failed, as torchrun's @record does:
///
///     int main(int argc, char** argv) { return lockstep::record(argc, argv, train); }
///
/// An exception that leaves `program`, std::terminate in any thread, and a fatal signal (SIGSEGV,
/// SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP) each print one line to standard error and write
/// torchelastic's JSON to the file that $TORCHELASTIC_ERROR_FILE names, if it names one. The first
/// failure of a process is the one recorded. On success nothing is written.
///
/// Returns what `program` returns; 2 for an InvalidArgument, 75 for Preempted (which is no failure
/// and leaves no record), 1 for any other exception. After
/// std::terminate or a fatal signal the process dies of that signal, as it would have without this.
///
/// The backtrace names functions of the executable only if it is linked with -rdynamic (CMake:
/// ENABLE_EXPORTS). A stack overflow is recorded on the thread that called record() only: other
/// threads have no second stack to report from.
///
/// Call it once per process, around all of main, before other threads start.
int record(int argc, char** argv, int (*program)(int argc, char** argv));
int record(const std::function<int()>& program);

}  // namespace lockstep
