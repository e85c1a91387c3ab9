#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "launch/process_memory.h"
#include "launch/traced_thread.h"
#include "launch/unwind_reader.h"

namespace lockstep {

/// Where a caller's registers are to be found.
struct UnwindRules {
  enum class Kind {
    same,
    undefined,
    at_offset,
    is_offset,
    in_register,
    at_expression,
    is_expression
  };
  struct Rule {
    Kind kind = Kind::same;
    std::int64_t number = 0;  // an offset from the frame's address, or a register
    std::optional<UnwindReader> expression = {};  // gives an address, or the value itself
  };

  int frame_register = 0;  // the frame's address is this register and the offset, or the expression
  std::int64_t frame_offset = 0;
  std::optional<UnwindReader> frame_expression = {};
  std::array<Rule, ThreadRegisters::kCount> registers = {};
  int return_address = ThreadRegisters::kReturnAddress;
  bool is_signal_frame = false;  // a signal struck here: the pc is not that of a call
};

/// The rules at `pc`, from a module's table (.eh_frame_hdr); std::nullopt where it has none.
std::optional<UnwindRules> unwind_rules(std::uint64_t pc, std::uint64_t eh_frame_header,
                                        const ProcessMemory& memory);

/// Computes an expression; `start` is on its stack at first.
std::optional<std::uint64_t> evaluate(UnwindReader expression, std::optional<std::uint64_t> start,
                                      const ThreadRegisters& registers,
                                      const ProcessMemory& memory);

}  // namespace lockstep
