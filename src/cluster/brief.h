#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/endpoint.h"
#include "launch/option_table.h"
#include "lockstep/environment.h"

namespace lockstep {

/// All that a launcher on another machine must know to take part in a job. It holds the job's
/// secret: it travels by standard input, environment or a file of the user's own, never by argv.
struct Brief {
  std::string version;  // of lockstep, on both sides
  std::string host;     // what the machine is called in the job
  int node_rank = 0;
  int min_nodes = 1;
  int max_nodes = 1;
  std::vector<Endpoint> endpoints;  // of the coordinator; the likeliest first
  std::string secret;               // empty: --insecure
  std::string run_id;
  LaunchCommand command = LaunchCommand::run;
  std::vector<std::string> arguments;       // of the command, as the user gave them
  Environment::Variables option_variables;  // that stand for options
  Environment::Variables environment;       // to be set beside the machine's own
  std::string working_directory;
  std::optional<std::string> workers;  // as --nproc-per-node takes it; unset: as the arguments say
  std::vector<int> gpus;               // to be made visible; empty: as they are

  bool operator==(const Brief&) const = default;
};

/// One line of JSON, and back. decode_brief() throws InvalidArgument for anything else.
std::string encode(const Brief& brief);
Brief decode_brief(std::string_view text);

}  // namespace lockstep
