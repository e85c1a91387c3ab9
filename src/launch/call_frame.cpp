#include "launch/call_frame.h"

#include "launch/unwind_rules.h"

namespace lockstep {
namespace {

using Registers = ThreadRegisters;

// Pointers of aarch64 may be signed in their upper bits, which are no part of the address.
std::uint64_t plain_address(std::uint64_t pointer) {
#if defined(__aarch64__)
  return pointer & ((std::uint64_t{1} << 48) - 1);
#else
  return pointer;
#endif
}

std::optional<std::uint64_t> frame_address(const UnwindRules& rules, const Registers& registers,
                                           const ProcessMemory& memory) {
  if (rules.frame_expression) {
    return evaluate(*rules.frame_expression, std::nullopt, registers, memory);
  }
  if (rules.frame_register >= Registers::kCount) return std::nullopt;
  return registers.values[rules.frame_register] + static_cast<std::uint64_t>(rules.frame_offset);
}

std::optional<std::uint64_t> value_by(const UnwindRules::Rule& rule, std::uint64_t frame,
                                      std::uint64_t present, const Registers& registers,
                                      const ProcessMemory& memory) {
  const std::uint64_t place = frame + static_cast<std::uint64_t>(rule.number);
  switch (rule.kind) {
    case UnwindRules::Kind::same:
      return present;
    case UnwindRules::Kind::at_offset:
      return memory.read<std::uint64_t>(place);
    case UnwindRules::Kind::is_offset:
      return place;
    case UnwindRules::Kind::in_register:
      if (rule.number >= Registers::kCount) return std::nullopt;
      return registers.values[static_cast<std::size_t>(rule.number)];
    case UnwindRules::Kind::at_expression: {
      const auto address = evaluate(*rule.expression, frame, registers, memory);
      return address ? memory.read<std::uint64_t>(*address) : std::nullopt;
    }
    case UnwindRules::Kind::is_expression:
      return evaluate(*rule.expression, frame, registers, memory);
    default:
      return std::nullopt;
  }
}

std::optional<CallFrame> by_rules(const UnwindRules& rules, const CallFrame& frame,
                                  const ProcessMemory& memory) {
  const Registers& callee = frame.registers;
  const auto address = frame_address(rules, callee, memory);
  if (!address) return std::nullopt;
  CallFrame caller{.registers = callee, .is_return_address = !rules.is_signal_frame};
  // Before the others: it may have a rule of its own, as in a frame that a signal made.
  caller.registers.values[Registers::kStackPointer] = *address;
  for (int number = 0; number < Registers::kCount; ++number) {
    const UnwindRules::Rule& rule = rules.registers[number];
    if (rule.kind == UnwindRules::Kind::same) continue;
    const auto value = value_by(rule, *address, callee.values[number], callee, memory);
    if (!value && number == rules.return_address) return std::nullopt;  // the outermost
    caller.registers.values[number] = value.value_or(0);
  }
  if (rules.return_address >= Registers::kCount) return std::nullopt;
  caller.registers.pc = plain_address(caller.registers.values[rules.return_address]);
  return caller;
}

// [frame pointer] holds that of the caller, and the return address follows.
std::optional<CallFrame> by_frame_pointer(const CallFrame& frame, const ProcessMemory& memory) {
  struct Link {
    std::uint64_t frame, pc;
  };
  const std::uint64_t place = frame.registers.values[Registers::kFramePointer];
  const auto link = memory.read<Link>(place);
  if (!link || place < frame.registers.values[Registers::kStackPointer]) return std::nullopt;
  CallFrame caller = frame;
  caller.is_return_address = true;
  caller.registers.values[Registers::kFramePointer] = link->frame;
  caller.registers.values[Registers::kStackPointer] = place + sizeof(Link);
  caller.registers.values[Registers::kReturnAddress] = link->pc;
  caller.registers.pc = plain_address(link->pc);
  return caller;
}

}  // namespace

std::optional<CallFrame> caller_of(const CallFrame& frame, const LoadedModules& modules,
                                   const ProcessMemory& memory) {
  // A call may be the last instruction of a function that does not return.
  const std::uint64_t pc = frame.registers.pc - (frame.is_return_address ? 1 : 0);
  const LoadedModule* module = modules.find(pc);
  std::optional<UnwindRules> rules;
  if (module != nullptr && module->eh_frame_header != 0) {
    rules = unwind_rules(pc, module->eh_frame_header, memory);
  }
  const auto caller = rules ? by_rules(*rules, frame, memory) : by_frame_pointer(frame, memory);
  if (!caller || caller->registers.pc == 0) return std::nullopt;
  // A stack that does not lead outwards is damaged, and would be followed for ever.
  const std::uint64_t before = frame.registers.values[Registers::kStackPointer];
  const std::uint64_t after = caller->registers.values[Registers::kStackPointer];
  const bool moves =
      after > before || (after == before && caller->registers.pc != frame.registers.pc);
  const bool switches_stack = rules && rules->is_signal_frame;
  if (!moves && !switches_stack) return std::nullopt;
  return caller;
}

}  // namespace lockstep
