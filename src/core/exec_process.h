#pragma once

#include <sys/types.h>

#include "core/subprocess.h"

namespace lockstep {

/// Starts the program and returns its pid once it runs; throws as Subprocess's constructor does.
/// The caller must wait for it.
pid_t exec_process(const SubprocessOptions& options);

}  // namespace lockstep
