#include "doctor/doctor_agent.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cluster/agent_place.h"
#include "cluster/brief.h"
#include "cluster/brief_channel.h"
#include "cluster/own_place.h"
#include "cluster/prologue.h"
#include "doctor/doctor_options.h"
#include "doctor/several_nodes.h"
#include "launch/secret.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// What goes wrong before the checks is a finding like any other: the doctor comes all the same.
struct Arrival {
  Environment environment;
  Findings findings;
};

Arrival arrive(const Brief& brief, const DoctorOptions& options, const Environment& own,
               const std::string& version) {
  Arrival arrival{.environment = Environment(variables_for(brief, own)), .findings = {}};
  FindingList list(brief.host, arrival.findings);
  if (brief.version != version) {
    list.error("versions",
               concat("lockstep ", version, " is installed here, and ", brief.version,
                      " where the doctor was called"),
               "install the same, or name another program with --remote-lockstep");
  }
  if (::chdir(brief.working_directory.c_str()) != 0) {
    list.error("start",
               concat("the working directory '", brief.working_directory,
                      "' is not on this machine: ", std::strerror(errno)),
               "put it on a disk that all share, or start in a folder that all have");
  }
  if (options.prologue) {
    try {
      arrival.environment = after_prologue(*options.prologue, arrival.environment);
    } catch (const Error& error) {
      list.error("start", first_line(error.what()), "correct --prologue");
    }
  }
  replace_environment(arrival.environment.variables());
  return arrival;
}

}  // namespace

int doctor_agent(const std::optional<std::string>& brief_file, const Environment& environment,
                 const std::string& version) {
  const ReceivedBrief received = receive_brief(brief_file, environment);
  const Brief brief = decode_brief(received.text);
  if (!brief.secret.empty()) guard_secret();
  const DoctorOptions options =
      parse_doctor_options(brief.arguments, Environment(brief.option_variables));
  Arrival arrival = arrive(brief, options, environment, version);
  LocalReport local = check_this_machine({.lockstep_version = version,
                                          .several_nodes = brief.max_nodes > 1,
                                          .shared_folder = options.shared_folder},
                                         arrival.environment);
  local.findings.insert(local.findings.begin(), arrival.findings.begin(), arrival.findings.end());
  local.host = brief.host;  // as the user calls it
  const SeveralNodesOptions several{.nodes = brief.max_nodes,
                                    .endpoints = endpoints_for(brief, environment),
                                    .secret = brief.secret,
                                    .tls = options.tls,
                                    .shared_folder = options.shared_folder,
                                    .join_limit = options.join_limit,
                                    .smoke = {.enabled = options.smoke,
                                              .program = options.smoke_program,
                                              .python = local.python,
                                              .secret = brief.secret,
                                              .tls = options.tls},
                                    .say = [](const std::string&) {}};
  examine_as_member(local, several);
  return 0;
}

}  // namespace lockstep
