#pragma once

#include <span>
#include <string>
#include <string_view>

#include "launch/option_values.h"
#include "launch/options.h"

namespace lockstep {

/// The two commands that share this table.
enum class LaunchCommand {
  run,     // `lockstep run`, torchrun's successor
  launch,  // `lockstep launch`, that of `python -m torch.distributed.launch`
};

/// "lockstep run".
std::string_view to_string(LaunchCommand command);

enum class OptionGroup { workers, cluster, meeting, program, failures, output, machine, general };

/// The heading of a group in help and manual.
std::string_view heading(OptionGroup group);

enum class OptionOrigin {
  torchrun,
  launch,    // only `lockstep launch` has it
  lockstep,  // ours
};

/// What can be completed after an option.
enum class ValueKind { text, file, directory };

/// Options while they are being collected: what needs all of them to be judged is kept as text.
struct PendingOptions {
  RunOptions options;
  OptionValue rdzv_endpoint;
  OptionValue rdzv_conf;
};

/// One option. Parser, help, manual, completions and tests are made from these alone.
struct Option {
  std::string_view name;         // without dashes: "nproc-per-node"
  char letter = 0;               // 'r' for -r; 0: none
  std::string_view placeholder;  // of the value in help; empty: a flag
  std::string_view variable;     // the environment variable that stands for it; empty: none
  OptionGroup group = OptionGroup::general;
  OptionOrigin origin = OptionOrigin::torchrun;
  std::string_view fallback;  // what holds when nothing is given; empty: nothing to say
  std::string_view choices;   // the values there are, with blanks between; empty: any
  ValueKind kind = ValueKind::text;
  std::string_view help;

  // One of the two.
  bool RunOptions::*flag = nullptr;
  void (*set)(PendingOptions&, const OptionValue&) = nullptr;

  bool takes_value() const { return flag == nullptr; }
  bool belongs_to(LaunchCommand command) const {
    return origin != OptionOrigin::launch || command == LaunchCommand::launch;
  }
};

/// Every option, by group, in the order of the help.
std::span<const Option> all_options();

}  // namespace lockstep
