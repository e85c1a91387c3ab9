#pragma once

#include <cstdint>
#include <optional>

#include "launch/loaded_modules.h"
#include "launch/process_memory.h"
#include "launch/traced_thread.h"

namespace lockstep {

/// A function's frame on a stack.
struct CallFrame {
  ThreadRegisters registers;       // those that are known of it
  bool is_return_address = false;  // the pc is where a call will come back to
};

/// The frame that called this one; std::nullopt at the end of the stack, or where it is lost.
///
/// It follows the tables for exceptions (.eh_frame), which all code of C++ and the C library has,
/// as they lie in the memory of the process; code without them is taken to keep frame pointers.
std::optional<CallFrame> caller_of(const CallFrame& frame, const LoadedModules& modules,
                                   const ProcessMemory& memory);

}  // namespace lockstep
