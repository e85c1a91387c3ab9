#pragma once

#include "launch/messages.h"
#include "launch/options.h"
#include "launch/worker_command.h"

namespace lockstep {

/// Tells the program of a job from another one of the same name, such as a copy on one node that
/// was not renewed.
///
/// The file is the script, or the native program. A program that was found on PATH is part of the
/// system, which may differ a little between machines: of `bash train.sh` the script counts. What a
/// script imports or a program loads is not looked at. Of a module only the name is known. Reads at
/// most the first 64 MiB; a file that cannot be read has no digest and is equal to every other.
ProgramIdentity identify_program(const RunOptions& options, const WorkerCommand& command);

}  // namespace lockstep
