#pragma once

#include <string>
#include <vector>

#include "launch/option_table.h"

namespace lockstep {

struct GivenOption {
  const Option* option = nullptr;
  std::string value;  // empty for a flag
};

/// A command line taken apart.
struct ParsedArguments {
  std::vector<GivenOption> options;  // in the order given
  std::vector<std::string> program;  // the script and its arguments; empty: none was given
};

/// Takes a command line (without the name of the command) apart by the rules of Python's argparse,
/// because existing command lines were written for it:
///   - --name value, --name=value, -r 3, -r3, -r=3, -mr3; '_' and '-' in names are the same;
///   - a name may be cut short as long as one option is meant. Names that torchrun does not have
///     stand back: they never make a short form ambiguous that torchrun understands;
///   - a value may be a negative number or contain blanks, but cannot otherwise begin with '-'
///     unless it is written with '=';
///   - the first argument that is neither option nor value is the script, and everything after it
///     is the script's. A "--" before the script, or right after it, is dropped.
///
/// Ends at --help, with it as the last option. Throws InvalidArgument for an option that does not
/// exist (and says which is meant, if one is near), is ambiguous, lacks its value or has one too
/// many.
ParsedArguments parse_arguments(const std::vector<std::string>& arguments, LaunchCommand command);

}  // namespace lockstep
