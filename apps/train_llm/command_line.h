#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "option_table.h"
#include "options.h"

namespace train_llm {

/// A command line that has been read, with the configuration file that it names.
struct Invocation {
  Command command = Command::train;
  bool help = false;
  std::string target = {};  // of export: the folder to write
  Options options = {};
  /// Neither data nor a model was named: the small model learns the embedded instructions.
  bool embedded = false;
};

/// `arguments` are those after the program's name. Names may have dashes or underscores, and may be
/// cut short where one option is meant; values follow as the next word or after '='. What the
/// command line says counts more than --config, and that more than defaults. Throws InvalidArgument
/// with one line.
Invocation parse_command_line(const std::vector<std::string>& arguments);

/// Throws InvalidArgument for what --shard's options ask of a number of ranks that it does not
/// have.
void check_ranks(const Options& options, std::int64_t ranks);

/// The options of a run as its config.json has them, over the defaults. Throws InvalidArgument.
Options read_stored_options(const std::string& path);

std::string help_text(Command command);

/// Every option with its value, for RUN/config.json; --config reads it again.
nlohmann::ordered_json effective_config(const Options& options);

}  // namespace train_llm
