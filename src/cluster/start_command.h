#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/hosts.h"

namespace lockstep {

/// What starts a launcher on a machine.
enum class StarterKind { ssh, srun, pbsdsh, local };

std::string_view to_string(StarterKind kind);
/// Of "ssh", "srun", "pbsdsh" or "local".
StarterKind starter_kind(std::string_view name);

struct StarterOptions {
  StarterKind kind = StarterKind::ssh;
  std::string lockstep;                       // where the program is on the machine
  std::vector<std::string> ssh_options = {};  // words
  std::string brief_prefix = {};              // of files that all machines see, for pbsdsh
  bool export_all = true;                     // of srun's environment
};

/// How to start `lockstep WORDS` on a machine and hand it a brief. Nothing of the brief is in argv.
struct StartCommand {
  std::vector<std::string> argv;
  std::map<std::string, std::string> set_environment = {};
  std::vector<std::string> unset_environment = {};
  std::string input = {};       // for its standard input, which then stays open
  bool has_input = true;        // otherwise that is /dev/null
  std::string brief_file = {};  // to be written before, readable by this user only; empty: none
  std::string brief = {};       // what is in it
  bool dies_with_parent = true;

  bool operator==(const StartCommand&) const = default;
};

/// `number` tells the briefs of several machines apart.
StartCommand start_command(const StarterOptions& options, const Host& host,
                           const std::vector<std::string>& words, const std::string& brief,
                           int number);

/// The words of a line as a shell would take them: blanks separate, quotes and backslashes protect.
/// Throws InvalidArgument, naming `option`, where a quote is left open.
std::vector<std::string> shell_words(std::string_view line, const std::string& option);

/// A word as every shell reads it back.
std::string shell_quoted(std::string_view word);

}  // namespace lockstep
