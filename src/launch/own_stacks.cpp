#include "launch/own_stacks.h"

#include <errno.h>
#include <algorithm>
#include <optional>
#include <system_error>

#include "launch/call_frame.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxFrames = 64;
constexpr std::chrono::milliseconds kTimeToStop{500};  // of one thread

ThreadStack stack_of(pid_t tid, const ThreadRegisters& registers, LoadedModules& modules,
                     const ProcessMemory& memory) {
  ThreadStack stack{.tid = tid, .frames = {}};
  std::optional<CallFrame> frame = CallFrame{.registers = registers};
  while (frame && stack.frames.size() < kMaxFrames) {
    stack.frames.push_back(modules.describe(frame->registers.pc, frame->is_return_address));
    frame = caller_of(*frame, modules, memory);
  }
  return stack;
}

}  // namespace

OwnStacks read_stacks(const ProcessState& process, std::chrono::milliseconds time_limit) {
  OwnStacks found;
  if (!can_trace_threads()) {
    found.problem = "the registers of this processor are not known";
    return found;
  }
  const auto deadline = Clock::now() + time_limit;
  const ProcessMemory memory(process.pid);
  LoadedModules modules(process.pid, memory);
  for (const ThreadState& state : process.threads) {
    if (Clock::now() > deadline) {
      found.problem = "there was no time for all threads";
      return found;
    }
    const TracedThread thread(state.tid, std::min(deadline, Clock::now() + kTimeToStop));
    if (const auto registers = thread.registers()) {
      found.stacks.push_back(stack_of(state.tid, *registers, modules, memory));
    } else if (thread.error() == EPERM) {
      found.not_permitted = true;
      found.problem = "ptrace is not permitted";
      return found;
    } else if (thread.error() != 0 && thread.error() != ESRCH) {
      found.problem =
          concat("thread ", state.name,
                 " could not be held: ", std::generic_category().message(thread.error()));
    }
  }
  return found;
}

}  // namespace lockstep
