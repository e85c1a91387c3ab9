#include "doctor/doctor_command.h"

#include <algorithm>
#include <chrono>
#include <ostream>

#include "cluster/own_place.h"
#include "cluster/prologue.h"
#include "doctor/doctor_agent.h"
#include "doctor/doctor_options.h"
#include "doctor/hosts_plan.h"
#include "doctor/local_checks.h"
#include "doctor/several_nodes.h"
#include "doctor/smoke.h"
#include "launch/addresses.h"
#include "launch/console.h"
#include "launch/listen.h"
#include "launch/secret.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDefaultPort = 29400;
constexpr int kMostRounds = 8;

void print(const DoctorReport& report, const DoctorOptions& options, std::ostream& out) {
  out << (options.json ? to_json(report) + "\n" : to_text(report, options.detail));
}

// By the rule of lockstep run; all addresses are those that can be listened at by their numbers.
std::vector<UniqueFd> listen_at(const Endpoint& endpoint) {
  const LocalMachine machine = LocalMachine::current();
  std::vector<std::string> addresses =
      addresses_to_listen_at(endpoint.host, resolve(endpoint.host), machine);
  if (addresses.empty()) {
    for (const LocalAddress& each : machine.addresses) {
      if (each.up && !each.address.is_link_local()) addresses.push_back(each.address.to_string());
    }
  }
  return listen_on_each(addresses, endpoint.port);
}

// Where this node is the one that the endpoint names. A port that is taken may be that of another
// doctor on this machine, which can be joined.
std::vector<UniqueFd> listen_if_ours(const Endpoint& endpoint, const Console& console) {
  if (!is_this_machine(endpoint.host)) return {};
  try {
    return listen_at(endpoint);
  } catch (const SystemError& error) {
    console.note(concat("doctor: ", error.what(), "; joining whoever is there"));
    return {};
  }
}

Endpoint endpoint_of(const DoctorOptions& options) {
  const Endpoint endpoint = parse_endpoint(options.endpoint, kDefaultPort);
  const auto numeric = IpAddress::parse(endpoint.host);
  if (endpoint.port == 0 || (numeric && numeric->is_unspecified())) {
    throw InvalidArgument(concat("--rdzv-endpoint is '", options.endpoint,
                                 "'; give an address of one node, and a port"));
  }
  return endpoint;
}

int check_alone(const DoctorOptions& options, const Environment& environment,
                const std::string& version, std::ostream& out) {
  const auto begin = Clock::now();
  const LocalReport local = check_this_machine(
      {.lockstep_version = version, .shared_folder = options.shared_folder}, environment);
  DoctorReport report;
  report.nodes = {local.host};
  report.findings = local.findings;
  if (options.smoke) {
    FindingList list(local.host, report.findings);
    judge_smoke(
        run_smoke({.workers = std::max(2, local.gpus), .limit_ms = kSmokeLimitMs},
                  {.enabled = true, .program = options.smoke_program, .python = local.python}),
        list);
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  print(report, options, out);
  return report.exit_code();
}

SeveralNodesOptions several_options(const DoctorOptions& options, const Console& console) {
  SeveralNodesOptions several{.nodes = options.nodes,
                              .endpoints = {},
                              .tls = options.tls,
                              .shared_folder = options.shared_folder,
                              .join_limit = options.join_limit,
                              .most_rounds = options.all_pairs ? 0 : kMostRounds};
  several.smoke = {.enabled = options.smoke, .program = options.smoke_program, .tls = options.tls};
  several.say = [&console](const std::string& text) { console.note(concat("doctor: ", text)); };
  return several;
}

// One of several doctors, each on its node. Without listeners, not the head.
int check_as_one_of(SeveralNodesOptions& several, std::vector<UniqueFd> listeners,
                    const DoctorOptions& options, const Environment& environment,
                    const std::string& version, const Console& console, std::ostream& out) {
  LocalReport local = check_this_machine({.lockstep_version = version,
                                          .several_nodes = several.nodes > 1,
                                          .shared_folder = options.shared_folder},
                                         environment);
  // Slurm's nodes may have other names than their machines.
  const auto slurm_name = environment.get("SLURMD_NODENAME");
  if (slurm_name && !slurm_name->empty() && environment.has("SLURM_STEP_ID")) {
    local.host = *slurm_name;
  }
  several.smoke.python = local.python;
  several.smoke.secret = several.secret;
  if (!listeners.empty()) {
    const DoctorReport report = examine_as_head(std::move(listeners), local, several);
    print(report, options, out);
    return report.exit_code();
  }
  const DoctorEnd end = examine_as_member(local, several);
  console.note(concat(end.summary, "; the report is at ", several.endpoints[0].host));
  return end.code;
}

int check_several(const DoctorOptions& options, const Environment& environment,
                  const std::string& version, std::ostream& out) {
  const Console console({.quiet = options.detail == ReportDetail::problems});
  SeveralNodesOptions several = several_options(options, console);
  several.endpoints = {endpoint_of(options)};
  several.secret = shared_secret({.file = options.secret_file, .insecure = options.insecure},
                                 environment, "a doctor on several nodes");
  if (!several.secret.empty()) guard_secret();
  std::vector<UniqueFd> listeners = listen_if_ours(several.endpoints[0], console);
  return check_as_one_of(several, std::move(listeners), options, environment, version, console,
                         out);
}

// A scheduler has started one doctor per node, and says which this is.
int check_in_place(const TaskPlace& place, const DoctorOptions& options,
                   const Environment& environment, const std::string& version, std::ostream& out) {
  const Console console({.quiet = options.detail == ReportDetail::problems});
  SeveralNodesOptions several = several_options(options, console);
  several.nodes = place.nodes;
  if (!options.endpoint.empty()) {
    several.endpoints = {endpoint_of(options)};
  } else if (place.endpoint) {
    several.endpoints = {*place.endpoint};
  } else {
    throw InvalidArgument(
        "--nnodes is auto, and nothing says where the first node is: give --rdzv-endpoint "
        "HOST:PORT, the same for all");
  }
  several.secret = shared_secret({.file = options.secret_file, .insecure = options.insecure},
                                 environment, "a doctor on several nodes");
  if (!several.secret.empty()) guard_secret();
  std::vector<UniqueFd> listeners;
  if (place.node_rank == 0) listeners = listen_at(several.endpoints[0]);
  return check_as_one_of(several, std::move(listeners), options, environment, version, console,
                         out);
}

int check_hosts(const DoctorOptions& options, const std::vector<std::string>& arguments,
                const Environment& environment, const std::string& version, std::ostream& out) {
  const HostsPlan plan = plan_hosts(options, arguments, environment, version);
  const Console console({.quiet = options.detail == ReportDetail::problems});
  if (plan.place) {
    for (const std::string& notice : plan.notices) console.note(concat("doctor: ", notice));
    const Environment prepared =
        options.prologue ? after_prologue(*options.prologue, environment) : environment;
    if (options.prologue) replace_environment(prepared.variables());
    return plan.place->nodes > 1 ? check_in_place(*plan.place, options, prepared, version, out)
                                 : check_alone(options, prepared, version, out);
  }
  SeveralNodesOptions several = several_options(options, console);
  several.secret = plan.head->secret;
  if (!several.secret.empty()) guard_secret();
  several.say(concat(plan.head->nodes.size(), plan.head->nodes.size() == 1 ? " node" : " nodes",
                     " (", plan.source, "), started with ", to_string(plan.head->starter)));
  const DoctorReport report = examine_hosts(*plan.head, several);
  print(report, options, out);
  return report.exit_code();
}

}  // namespace

int doctor_command(const std::vector<std::string>& arguments, const Environment& environment,
                   const std::string& version, std::ostream& out) {
  const DoctorOptions options = parse_doctor_options(arguments, environment);
  if (options.help) {
    out << doctor_help();
    return 0;
  }
  if (options.agent) return doctor_agent(options.brief_file, environment, version);
  if (options.seeks_hosts) return check_hosts(options, arguments, environment, version, out);
  if (options.nodes > 1) return check_several(options, environment, version, out);
  return check_alone(options, environment, version, out);
}

}  // namespace lockstep
