#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "option_table.h"
#include "options.h"

namespace translate {

/// A command line that has been read, with the configuration file that it names.
struct Invocation {
  Command command = Command::train;
  bool help = false;
  Options options = {};
  std::vector<std::string> sentences = {};  // of infer; none: standard input has them
};

/// `arguments` are those after the program's name. What the command line says counts more than
/// --config, and that more than defaults. Throws InvalidArgument with one line.
Invocation parse_command_line(const std::vector<std::string>& arguments);

/// The options of a run as its config.json has them, over the defaults. Throws InvalidArgument.
Options read_stored_options(const std::string& path);

std::string help_text(Command command);

/// Every option with its value, for RUN/config.json; --config reads it again.
nlohmann::ordered_json effective_config(const Options& options);

/// One line about options that a run was begun with and that are others now and change what it
/// computes; empty when none is.
std::string changed_options(const Options& before, const Options& now);

/// The number of an epoch's file; nothing for words such as "latest".
std::optional<std::int64_t> epoch_number(const std::string& word);

}  // namespace translate
