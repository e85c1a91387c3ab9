#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "program_options/option_spec.h"

namespace program_options {

using Values = std::map<std::string, nlohmann::json, std::less<>>;  // by the option's name

/// What a command line says.
struct Given {
  Values values;
  std::string config_file;
  std::vector<std::string> positionals;
  bool help = false;
};

/// Names may have dashes or underscores, and may be cut short where one option is meant; values
/// follow as the next word or after '='; after "--" all words are positionals. Throws
/// InvalidArgument with one line.
Given read_words(const std::vector<std::string>& arguments, OptionTable table, unsigned command);

/// A file of options as JSON. Throws InvalidArgument and SystemError.
Values read_config(const std::string& path, OptionTable table, unsigned command);

template <typename Options>
void apply(Options& options, const Values& values, OptionTable table, unsigned command) {
  for (const auto& [name, value] : values) {
    set_option(options, *find_option(table, name, command), value);
  }
}

/// The lines of a help text about options, under their headings. `defaults`: of the program's
/// struct.
std::string describe_options(OptionTable table, unsigned command, const void* defaults);

}  // namespace program_options
