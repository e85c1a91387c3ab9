#include "cluster/agent_command.h"

#include <fcntl.h>
#include <unistd.h>
#include <cstdlib>

#include "cluster/agent_place.h"
#include "cluster/brief.h"
#include "cluster/brief_channel.h"
#include "cluster/find_head.h"
#include "cluster/prologue.h"
#include "launch/console.h"
#include "launch/line_prefix.h"
#include "launch/option_table.h"
#include "launch/parse_options.h"
#include "launch/run_command.h"
#include "launch/secret.h"
#include "launch/worker_environment.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::optional<std::string> brief_file(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return std::nullopt;
  if (arguments.size() == 2 && arguments[0] == kBriefFileOption) return arguments[1];
  throw InvalidArgument("agent takes no arguments; `lockstep run` starts it on other machines");
}

RunOptions options_of(const Brief& brief, const Environment::Variables& own) {
  Environment::Variables variables = own;
  for (const auto& [name, value] : brief.option_variables) variables[name] = value;
  RunOptions options =
      parse_options(brief.command, brief.arguments, Environment(std::move(variables)));
  options.secret_file.reset();  // the brief has it
  options.insecure = brief.secret.empty();
  return options;
}

void enter(const std::string& folder) {
  if (::chdir(folder.c_str()) != 0) {
    throw_errno(
        concat("the working directory '", folder,
               "' is not on this machine; put it on a disk that all share, or start the job "
               "in a folder that all have"));
  }
}

}  // namespace

int agent_command(const std::vector<std::string>& arguments, const Environment& environment,
                  const std::string& version) {
  const ReceivedBrief received = receive_brief(brief_file(arguments), environment);
  ::unsetenv(kBriefVariable);
  const Brief brief = decode_brief(received.text);
  if (!brief.secret.empty()) guard_secret();
  if (brief.version != version) {
    throw InvalidArgument(concat("lockstep ", version, " is installed here, and ", brief.version,
                                 " where the job was started: install the same, or name another "
                                 "program with --remote-lockstep"));
  }
  enter(brief.working_directory);
  Environment::Variables variables = variables_for(brief, environment);
  RunOptions options = options_of(brief, variables);
  if (options.prefix) check_line_prefix("--prefix", *options.prefix);
  if (options.prologue) {
    variables = after_prologue(*options.prologue, Environment(variables)).variables();
  }
  place_node(options, {.min_nodes = brief.min_nodes,
                       .max_nodes = brief.max_nodes,
                       .node_rank = brief.node_rank,
                       .endpoint = find_head(endpoints_for(brief, environment),
                                             {.secret = brief.secret, .tls = options.tls}),
                       .hosts = false,
                       .headed = true,
                       .run_id = brief.run_id,
                       .workers = brief.workers});
  if (!brief.secret.empty()) variables["LOCKSTEP_SECRET"] = brief.secret;
  JobPlan plan = plan_job(options, Environment(std::move(variables)));
  plan.host = plan.agent.self.host = brief.host;
  Console console({.quiet = options.quiet, .speaker = concat("lockstep (", brief.host, ")")});
  if (brief.node_rank == 0) {
    if (const auto notice = omp_notice(plan.environment, plan.workers)) console.note(*notice);
  }
  if (received.lifeline) ::fcntl(received.lifeline.get(), F_SETFL, O_NONBLOCK);
  return run_job(plan, console, {.lifeline = received.lifeline.get(), .coordinator_reports = true});
}

}  // namespace lockstep
