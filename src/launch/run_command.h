#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launch/console.h"
#include "launch/job_plan.h"
#include "launch/log_pump.h"
#include "launch/option_table.h"
#include "lockstep/environment.h"

namespace lockstep {

/// What the arguments of `lockstep run` or `lockstep launch` ask for; see parse_run_options().
RunOptions parse_options(LaunchCommand command, const std::vector<std::string>& arguments,
                         const Environment& environment);

/// `lockstep run` and `lockstep launch`: plans, runs the job on this node to its end, reports, and
/// returns the exit code. Throws InvalidArgument for what the user got wrong, before anything has
/// started. The options' nodes are settled. Call it before any thread is started.
int run_command(LaunchCommand command, const RunOptions& options, const Environment& environment);

struct RunJobOptions {
  int lifeline = -1;                 // see NodeServices
  bool coordinator_reports = false;  // how a job ended is said where its coordinator is
};

/// Who prints events for machines: on standard output with --json, on standard error where
/// torchrun's console handler would write its own. Empty where nobody has asked.
std::function<void(const std::string& line)> event_listener(const RunOptions& options,
                                                            LogPump& pump);

/// The part of it after the plan.
int run_job(JobPlan& plan, Console& console, const RunJobOptions& how);

}  // namespace lockstep
