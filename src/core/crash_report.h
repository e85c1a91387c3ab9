#pragma once

#include <string_view>

#include "core/backtrace.h"

namespace lockstep {

/// The one report that a process can leave of its failure. There is one per process and all its
/// memory is static, because it must work in a signal handler, where nothing can be passed and
/// nothing allocated. Everything here but prepare_crash_report() may be called in one.

/// Reads RANK and TORCHELASTIC_ERROR_FILE and forgets earlier reports.
void prepare_crash_report();

enum class Claim {
  mine,    // the caller reports, and nobody else
  again,   // the caller reported before, or failed while reporting
  others,  // another thread reported; if it was about to end the process, it has had time to
};

/// Called by a thread before it reports. `signal` is what the process will die of, 0 for none.
Claim claim_crash_report(int signal);

/// The signal of the thread that reports, 0 for none.
int claimed_signal();

/// Called by the thread that reports, when it has done so.
void finish_crash_report();

struct Failure {
  std::string_view type;  // "InvalidArgument", "SIGSEGV"
  std::string_view text;
  std::string_view stack_title;  // says what the stack below it is
  std::string_view stack;        // lines; may be empty
};

/// Writes the error file; a later call replaces it.
void write_error_file(const Failure& failure);

/// Writes the one line to standard error.
void print_failure(const Failure& failure);

}  // namespace lockstep
