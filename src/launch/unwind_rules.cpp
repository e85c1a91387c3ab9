// Call frame information: chapter 6.4 of the DWARF standard, in the form of the Linux Standard
// Base.
#include "launch/unwind_rules.h"

#include <string>
#include <vector>

namespace lockstep {
namespace {

constexpr std::size_t kMaxRecord = 64 << 10;

/// What functions that were compiled alike have in common.
struct Common {
  std::uint64_t code_factor = 1;
  std::int64_t data_factor = 1;
  int return_address = 0;
  bool augmented = false;
  bool is_signal_frame = false;
  std::uint8_t encoding = 0;  // of addresses
  std::optional<UnwindReader> instructions;
};

// A record without its length, at this address.
std::optional<UnwindReader> record_at(std::uint64_t address, const ProcessMemory& memory) {
  const auto length = memory.read<std::uint32_t>(address);
  if (!length || *length == 0 || *length > kMaxRecord) return std::nullopt;
  return UnwindReader(memory, address + 4, *length);
}

std::optional<Common> common_at(std::uint64_t address, const ProcessMemory& memory) {
  auto record = record_at(address, memory);
  if (!record || record->number<std::uint32_t>() != 0) return std::nullopt;
  const auto version = record->number<std::uint8_t>();
  const std::string augmentation = record->text();
  Common common;
  common.code_factor = record->uleb();
  common.data_factor = record->sleb();
  common.return_address =
      static_cast<int>(version == 1 ? record->number<std::uint8_t>() : record->uleb());
  if (augmentation.starts_with("z")) {
    common.augmented = true;
    UnwindReader data = record->part(record->uleb());
    for (const char letter : augmentation.substr(1)) {
      if (letter == 'R') common.encoding = data.number<std::uint8_t>();
      if (letter == 'L') data.skip(1);
      if (letter == 'P') data.pointer(data.number<std::uint8_t>(), 0);
      if (letter == 'S') common.is_signal_frame = true;
    }
  } else if (!augmentation.empty()) {
    return std::nullopt;
  }
  if (record->failed()) return std::nullopt;
  common.instructions = std::move(record);
  return common;
}

// The address of the record for the function around pc, by the table of functions in order.
std::optional<std::uint64_t> find_record(std::uint64_t pc, std::uint64_t header,
                                         const ProcessMemory& memory) {
  constexpr std::uint8_t kPairsOfOffsets = 0x3b;  // what all linkers write
  UnwindReader start(memory, header, 32);
  const auto version = start.number<std::uint8_t>();
  const auto frame_encoding = start.number<std::uint8_t>();
  const auto count_encoding = start.number<std::uint8_t>();
  const auto table_encoding = start.number<std::uint8_t>();
  start.pointer(frame_encoding, header);
  const std::uint64_t count = start.pointer(count_encoding, header);
  if (start.failed() || version != 1 || table_encoding != kPairsOfOffsets) return std::nullopt;

  struct Pair {
    std::int32_t function, record;
  };
  const std::uint64_t table = start.address();
  const auto pair = [&](std::uint64_t index) {
    return memory.read<Pair>(table + index * sizeof(Pair)).value_or(Pair{});
  };
  std::uint64_t first = 0, last = count;  // the first function after pc is among these
  while (first < last) {
    const std::uint64_t middle = first + (last - first) / 2;
    header + static_cast<std::int64_t>(pair(middle).function) <= pc ? first = middle + 1
                                                                    : last = middle;
  }
  if (first == 0) return std::nullopt;
  return header + static_cast<std::int64_t>(pair(first - 1).record);
}

/// Runs the instructions that describe how the rules change in the course of a function.
class RuleMachine {
 public:
  explicit RuleMachine(const Common& common) : common_(common) {
    rules_.return_address = common.return_address;
    rules_.is_signal_frame = common.is_signal_frame;
  }

  /// Up to the instruction at `pc`; `location` is where the function begins.
  bool run(UnwindReader code, std::uint64_t location, std::uint64_t pc) {
    while (!code.at_end() && !code.failed()) {
      const auto byte = code.number<std::uint8_t>();
      const int low = byte & 0x3f;
      switch (byte >> 6) {
        case 1:
          location += static_cast<std::uint64_t>(low) * common_.code_factor;
          break;
        case 2:
          set(low, UnwindRules::Kind::at_offset,
              static_cast<std::int64_t>(code.uleb()) * common_.data_factor);
          break;
        case 3:
          restore(low);
          break;
        default:
          if (const auto step = advance(byte, code)) {
            location += *step * common_.code_factor;
          } else if (!apply(byte, code)) {
            return false;
          }
      }
      if (location > pc) return true;
    }
    return !code.failed();
  }

  /// What the common part says is what is restored.
  void remember_initial() { initial_ = rules_; }

  const UnwindRules& rules() const { return rules_; }

 private:
  static std::optional<std::uint64_t> advance(std::uint8_t byte, UnwindReader& code) {
    if (byte == 0x02) return code.number<std::uint8_t>();
    if (byte == 0x03) return code.number<std::uint16_t>();
    if (byte == 0x04) return code.number<std::uint32_t>();
    return std::nullopt;
  }

  int reg(UnwindReader& code) { return static_cast<int>(code.uleb()); }
  std::int64_t factored(std::int64_t offset) const { return offset * common_.data_factor; }

  void set(int number, UnwindRules::Kind kind, std::int64_t value = 0,
           std::optional<UnwindReader> expression = std::nullopt) {
    if (number < 0 || number >= ThreadRegisters::kCount) return;  // of vectors, which nobody needs
    rules_.registers[number] = {.kind = kind, .number = value, .expression = std::move(expression)};
  }
  void restore(int number) {
    if (number >= 0 && number < ThreadRegisters::kCount) {
      rules_.registers[number] = initial_.registers[number];
    }
  }
  void set_frame(int number, std::int64_t offset) {
    rules_.frame_register = number;
    rules_.frame_offset = offset;
    rules_.frame_expression.reset();
  }

  bool apply(std::uint8_t byte, UnwindReader& code) {
    switch (byte) {
      case 0x00:  // nop
      case 0x2d:  // aarch64: return addresses are signed from here on, or no more
        return true;
      case 0x0a:
        remembered_.push_back(rules_);
        return true;
      case 0x0b: {
        if (remembered_.empty()) return false;
        rules_ = std::move(remembered_.back());
        remembered_.pop_back();
        return true;
      }
      case 0x2e:  // the size of arguments
        code.uleb();
        return true;
      default:
        return byte >= 0x0c && byte <= 0x13 && byte != 0x10 && byte != 0x11
                   ? apply_to_frame(byte, code)
                   : apply_to_register(byte, code);
    }
  }

  bool apply_to_frame(std::uint8_t byte, UnwindReader& code) {
    switch (byte) {
      case 0x0c: {
        const int number = reg(code);
        set_frame(number, static_cast<std::int64_t>(code.uleb()));
        return true;
      }
      case 0x12: {
        const int number = reg(code);
        set_frame(number, factored(code.sleb()));
        return true;
      }
      case 0x0d:
        set_frame(reg(code), rules_.frame_offset);
        return true;
      case 0x0e:
        set_frame(rules_.frame_register, static_cast<std::int64_t>(code.uleb()));
        return true;
      case 0x13:
        set_frame(rules_.frame_register, factored(code.sleb()));
        return true;
      default:  // 0x0f
        rules_.frame_expression = code.part(code.uleb());
        return true;
    }
  }

  bool apply_to_register(std::uint8_t byte, UnwindReader& code) {
    const int number = reg(code);
    switch (byte) {
      case 0x05:
        set(number, UnwindRules::Kind::at_offset, factored(static_cast<std::int64_t>(code.uleb())));
        return true;
      case 0x06:
        restore(number);
        return true;
      case 0x07:
        set(number, UnwindRules::Kind::undefined);
        return true;
      case 0x08:
        set(number, UnwindRules::Kind::same);
        return true;
      case 0x09:
        set(number, UnwindRules::Kind::in_register, reg(code));
        return true;
      case 0x10:
        set(number, UnwindRules::Kind::at_expression, 0, code.part(code.uleb()));
        return true;
      case 0x11:
        set(number, UnwindRules::Kind::at_offset, factored(code.sleb()));
        return true;
      case 0x14:
        set(number, UnwindRules::Kind::is_offset, factored(static_cast<std::int64_t>(code.uleb())));
        return true;
      case 0x15:
        set(number, UnwindRules::Kind::is_offset, factored(code.sleb()));
        return true;
      case 0x16:
        set(number, UnwindRules::Kind::is_expression, 0, code.part(code.uleb()));
        return true;
      default:
        return false;
    }
  }

  const Common& common_;
  UnwindRules rules_, initial_;
  std::vector<UnwindRules> remembered_;
};

}  // namespace

std::optional<UnwindRules> unwind_rules(std::uint64_t pc, std::uint64_t eh_frame_header,
                                        const ProcessMemory& memory) {
  const auto address = find_record(pc, eh_frame_header, memory);
  if (!address) return std::nullopt;
  auto record = record_at(*address, memory);
  if (!record) return std::nullopt;
  const std::uint64_t here = record->address();
  const auto common = common_at(here - record->number<std::uint32_t>(), memory);
  if (!common) return std::nullopt;
  const std::uint64_t begin = record->pointer(common->encoding, 0);
  const std::uint64_t length = record->pointer(common->encoding & 0x0f, 0);
  if (record->failed() || pc < begin || pc - begin >= length) return std::nullopt;
  if (common->augmented) record->skip(record->uleb());
  RuleMachine machine(*common);
  if (!machine.run(*common->instructions, 0, ~std::uint64_t{0})) return std::nullopt;
  machine.remember_initial();
  if (!machine.run(*record, begin, pc)) return std::nullopt;
  return machine.rules();
}

std::optional<std::uint64_t> evaluate(UnwindReader expression, std::optional<std::uint64_t> start,
                                      const ThreadRegisters& registers,
                                      const ProcessMemory& memory) {
  std::vector<std::uint64_t> stack;
  if (start) stack.push_back(*start);
  const auto pop = [&] {
    const std::uint64_t value = stack.empty() ? 0 : stack.back();
    if (!stack.empty()) stack.pop_back();
    return value;
  };
  while (!expression.at_end()) {
    const auto byte = expression.number<std::uint8_t>();
    if (byte >= 0x30 && byte <= 0x4f) {  // small numbers
      stack.push_back(byte - 0x30U);
    } else if (byte >= 0x70 && byte <= 0x8f) {  // a register and an offset
      const int number = byte - 0x70;
      if (number >= ThreadRegisters::kCount) return std::nullopt;
      stack.push_back(registers.values[number] + static_cast<std::uint64_t>(expression.sleb()));
    } else if (byte == 0x06) {  // what lies there
      const auto value = memory.read<std::uint64_t>(pop());
      if (!value) return std::nullopt;
      stack.push_back(*value);
    } else if (byte == 0x08 || byte == 0x0a || byte == 0x0c) {  // numbers without a sign
      stack.push_back(byte == 0x08   ? expression.number<std::uint8_t>()
                      : byte == 0x0a ? expression.number<std::uint16_t>()
                                     : expression.number<std::uint32_t>());
    } else if (byte == 0x10) {
      stack.push_back(expression.uleb());
    } else if (byte == 0x11) {
      stack.push_back(static_cast<std::uint64_t>(expression.sleb()));
    } else if (byte == 0x23) {  // add a number
      stack.push_back(pop() + expression.uleb());
    } else {
      const std::uint64_t right = pop(), left = pop();
      switch (byte) {
        case 0x1a:
          stack.push_back(left & right);
          break;
        case 0x1c:
          stack.push_back(left - right);
          break;
        case 0x22:
          stack.push_back(left + right);
          break;
        case 0x24:
          stack.push_back(right < 64 ? left << right : 0);
          break;
        case 0x2a:
          stack.push_back(static_cast<std::int64_t>(left) >= static_cast<std::int64_t>(right));
          break;
        default:  // what no compiler writes into these tables
          return std::nullopt;
      }
    }
  }
  if (stack.empty() || expression.failed()) return std::nullopt;
  return stack.back();
}

}  // namespace lockstep
