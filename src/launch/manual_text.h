#pragma once

#include <span>
#include <string>
#include <string_view>

#include "launch/option_table.h"

namespace lockstep {

// What help and manual say beside the table of options.

struct Entry {
  std::string_view term;
  std::string_view text;
};

/// "Starts SCRIPT ...", one paragraph.
std::string_view description(LaunchCommand command);

/// Names cut short, the two spellings, where the options end; one paragraph.
std::string_view spelling_rules();

/// How SCRIPT is run, one paragraph.
std::string_view program_rules();

/// What `lockstep stack` does, one paragraph.
std::string_view stack_description();

/// The same of `lockstep doctor`.
std::string_view doctor_description();

/// What `lockstep sbatch`, `qsub` and `manifest` do, one paragraph.
std::string_view jobs_description();

/// Variables that stand for no option.
std::span<const Entry> launcher_variables();

/// What workers find in their environment.
std::span<const Entry> worker_variables();

std::span<const Entry> exit_statuses();

std::span<const Entry> examples();

/// "-r, --redirects=STREAMS"; without a value, "--quiet".
std::string spelled(const Option& option);

/// "variable PET_TEE; default 0": what follows the help of an option; may be empty.
std::string remarks(const Option& option);

/// Lines of at most `width` columns, each indented; words longer than that stay whole.
std::string wrap(std::string_view text, std::size_t indent, std::size_t width);

}  // namespace lockstep
