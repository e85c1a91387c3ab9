#pragma once

#include <sys/types.h>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/unique_fd.h"
#include "lockstep/error.h"

namespace lockstep {

/// A program to start, in full. Subprocess is the convenient form.
struct ProcessSpec {
  std::vector<std::string> argv;  // argv[0] without a slash is looked up on the new PATH
  std::map<std::string, std::string> environment;  // all of it
  std::string working_directory;  // empty: this process's; otherwise relative programs start there
  int stdin_fd = -1;              // -1: this process's; stays the caller's
  int stdout_fd = -1;             // likewise
  int stderr_fd = -1;
  bool die_with_parent = true;  // SIGKILL when the thread that started it ends
  bool new_session = false;     // becomes the leader of a session and of a process group
  std::vector<int> cpus;        // those it may run on; empty: as this process

  // Exactly these are ignored in the program, and all others have their default. Unset: what this
  // process ignores, except SIGPIPE.
  std::optional<std::vector<int>> ignored_signals;
};

/// A program could not be started.
class StartError : public SystemError {
 public:
  StartError(const std::string& message, int code) : SystemError(message), code_(code) {}

  /// The errno behind it.
  int code() const { return code_; }

 private:
  int code_;
};

/// Starts the program and returns its pid once it runs. It starts with no signal blocked and gets
/// no descriptor beyond the standard three. The caller must wait for it.
///
/// Throws InvalidArgument for a spec that cannot work, and StartError, naming the program or the
/// folder, when the system refuses.
pid_t exec_process(const ProcessSpec& spec);

/// Opens a file for a program's output: created or emptied, in append mode, so that standard output
/// and error can share it without overwriting each other. Nothing for an empty path. Throws as
/// exec_process() does.
UniqueFd open_output_file(const std::string& path);

}  // namespace lockstep
