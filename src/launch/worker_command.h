#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launch/options.h"
#include "lockstep/environment.h"

namespace lockstep {

/// The command line that all workers of a node share, up to their local rank.
struct WorkerCommand {
  std::vector<std::string> words;

  /// That of one worker: in every word but the program itself, ${local_rank} and $local_rank become
  /// the number, and $$ becomes $, as under torchrun.
  std::vector<std::string> argv(int local_rank) const;
};

/// Finds the program that the options name.
///
/// With --no-python, SCRIPT itself, from its path or from PATH. With --module and --run-path,
/// Python. Otherwise the file decides: a .py file goes to Python; an executable file that is an ELF
/// program, or has a #! line with another interpreter than Python, is run itself; every other file
/// goes to Python. A name without a slash is looked for in the working directory, then on PATH.
///
/// Python is $PYTHON_EXEC, else that of the active virtual environment, else python3, else python
/// on PATH.
///
/// Throws InvalidArgument when there is no such program, script or Python. The name of a module is
/// not checked: only Python can.
WorkerCommand find_worker_command(const RunOptions& options, const Environment& environment);

}  // namespace lockstep
