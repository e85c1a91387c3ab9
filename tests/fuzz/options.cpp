// The command line of `lockstep run` and `lockstep launch`: words and variables in, options or
// InvalidArgument with one line out.
//
// Each line of the input is an argument, or a variable where it begins with "$": "$PET_TEE=3".
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "launch/parse_options.h"
#include "launch/python_template.h"
#include "lockstep/error.h"

namespace {

using namespace lockstep;
using Parse = RunOptions (*)(const std::vector<std::string>&, const Environment&);

void check(Parse parse, const std::vector<std::string>& arguments, const Environment& environment) {
  try {
    const RunOptions options = parse(arguments, environment);
    LOCKSTEP_CHECK(options.help || !options.script.empty());
    LOCKSTEP_CHECK(options.min_nodes > 0 && options.min_nodes <= options.max_nodes);
    LOCKSTEP_CHECK(options.help || options.shutdown_timeout);
    // What follows the script is a tail of the arguments, untouched.
    LOCKSTEP_CHECK(options.script_arguments.size() <= arguments.size());
    for (std::size_t i = 1; i <= options.script_arguments.size(); ++i) {
      LOCKSTEP_CHECK(options.script_arguments[options.script_arguments.size() - i] ==
                     arguments[arguments.size() - i]);
    }
    for (const std::string& word : options.script_arguments) {
      const std::string result = substitute(word, {{"local_rank", "7"}});
      LOCKSTEP_CHECK(word.find('$') != std::string::npos || result == word, word);
    }
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    LOCKSTEP_CHECK(!message.empty() && message.find('\n') == std::string::npos, message);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::istringstream lines(std::string(reinterpret_cast<const char*>(data), size));
  std::vector<std::string> arguments;
  Environment::Variables variables;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (line.starts_with('$') && equals != std::string::npos) {
      variables.emplace(line.substr(1, equals - 1), line.substr(equals + 1));
    } else {
      arguments.push_back(line);
    }
  }
  const Environment environment(variables);
  check(parse_run_options, arguments, environment);
  check(parse_launch_options, arguments, environment);
  return 0;
}
