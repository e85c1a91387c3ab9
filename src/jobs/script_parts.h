#pragma once

#include <string>
#include <vector>

#include "jobs/job_options.h"

namespace lockstep {

// What job scripts of all schedulers have in common, each as lines of bash.

/// A command of these words, as a shell reads it, with lines broken between them.
std::string shell_command(const std::vector<std::string>& words);

/// The words that start the job on all nodes of the allocation. What the user said goes before what
/// is added.
std::vector<std::string> run_command_of(const JobOptions& options);

/// The first line. Modules are functions of a login shell.
std::string script_head(const JobOptions& options);

/// Modules, the virtual environment, variables, the user's own lines. What fails ends the job.
std::string preparation(const JobOptions& options);

/// Runs `lockstep run` on all nodes of the allocation and waits for its end, which is then in
/// $code. SIGUSR1 and SIGTERM that come to the script are passed on to it.
std::string run_and_wait(const JobOptions& options);

/// What $code is when the program has saved and asks to be started again.
std::string resume_code();

}  // namespace lockstep
