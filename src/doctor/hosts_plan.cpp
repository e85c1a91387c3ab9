#include "doctor/hosts_plan.h"

#include "cluster/find_hosts.h"
#include "cluster/own_place.h"
#include "launch/run_command.h"
#include "lockstep/error.h"

namespace lockstep {
HostsPlan plan_hosts(const DoctorOptions& options, const std::vector<std::string>& arguments,
                     const Environment& environment, const std::string& version) {
  // As a job would be started: the words that both commands have, and a program that never is.
  std::vector<std::string> words = options.host_words;
  if (!options.endpoint.empty()) words.push_back(concat("--rdzv-endpoint=", options.endpoint));
  if (options.secret_file) words.push_back(concat("--secret-file=", *options.secret_file));
  if (options.insecure) words.emplace_back("--insecure");
  if (options.tls) words.emplace_back("--tls");
  words.insert(words.end(), {"--no-python", "true"});
  const RunOptions run = parse_options(LaunchCommand::run, words, environment);
  const FoundHosts found = find_hosts(run, environment);

  HostsPlan plan;
  plan.source = found.source;
  if (found.in_place()) {
    plan.notices = notices_in_place(run);
    plan.place = found.allocation->place;
    plan.place->endpoint = meeting_endpoint(*found.allocation);
    return plan;
  }
  plan.head = plan_head({.command = LaunchCommand::run,
                         .arguments = arguments,
                         .options = run,
                         .hosts = found.hosts,
                         .allocation = found.allocation,
                         .version = version,
                         .program = own_program(),
                         .working_directory = working_directory(environment)},
                        environment);
  return plan;
}

}  // namespace lockstep
