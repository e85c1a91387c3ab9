#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include <nlohmann/json.hpp>

#include "options.h"

namespace train_llm {

enum class Command { train, generate, export_model };

/// One option: its name on the command line and in a configuration file, and where its value goes.
struct OptionSpec {
  using Field = std::variant<std::string Options::*, std::int64_t Options::*, double Options::*,
                             bool Options::*>;
  /// Which commands know it, as bits.
  enum Commands : unsigned { kTrain = 1, kGenerate = 2, kExport = 4 };

  std::string_view name;  // with dashes, without the two at the front
  char letter = 0;        // 0: none
  Field field;
  std::string_view value = {};  // what help calls its value; empty for a switch
  std::string_view help = {};
  std::string_view heading = {};  // of the options that begin here, in the help
  double lowest = -std::numeric_limits<double>::infinity();
  double highest = std::numeric_limits<double>::infinity();
  bool above_lowest = false;            // `lowest` itself is too low
  std::string_view choices = {};        // separated by '|'; empty: anything
  std::string_view shown_default = {};  // in the help, where the value itself says too little
  unsigned commands = kTrain;

  bool is_switch() const { return std::holds_alternative<bool Options::*>(field); }
  bool is_known_to(Command command) const;
};

std::span<const OptionSpec> all_options();

/// By its name with dashes or underscores; null when there is none.
const OptionSpec* find_option(std::string_view name, Command command);

/// The option whose name is most like this one; empty when none is near.
std::string nearest_name(std::string_view name, Command command);

/// What a word of the command line means for an option, or the value in a configuration file, as
/// JSON of the option's type. `source` begins the message ("--lr" or "config.json: lr"). Throws
/// InvalidArgument for what is no such value or out of range.
nlohmann::json checked_value(const OptionSpec& option, const std::string& source,
                             const std::string& word);
nlohmann::json checked_value(const OptionSpec& option, const std::string& source,
                             const nlohmann::json& value);

/// `value` has been checked.
void set_option(Options& options, const OptionSpec& option, const nlohmann::json& value);
nlohmann::json get_option(const Options& options, const OptionSpec& option);

}  // namespace train_llm
