#pragma once

#include "launch/console.h"
#include "launch/failure_report.h"
#include "launch/messages.h"
#include "launch/options.h"
#include "lockstep/environment.h"

namespace lockstep {

/// What a job's failure comes to, from what its nodes have said.
FailureReport report_of(const RunOptions& options, const Finish& finish);

/// Prints it on standard error, and leaves a record where a launcher above this one looks for it.
void print_report(const RunOptions& options, const Finish& finish, const Environment& environment,
                  const Console& console);

}  // namespace lockstep
