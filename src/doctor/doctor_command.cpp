#include "doctor/doctor_command.h"

#include <algorithm>
#include <chrono>
#include <ostream>

#include "doctor/doctor_options.h"
#include "doctor/local_checks.h"
#include "doctor/several_nodes.h"
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
constexpr int kSmokeLimitMs = 180000;

void print(const DoctorReport& report, const DoctorOptions& options, std::ostream& out) {
  out << (options.json ? to_json(report) + "\n" : to_text(report, options.detail));
}

std::string secret_of(const DoctorOptions& options, const Environment& environment) {
  const auto given = given_secret(options.secret_file, environment);
  if (given && options.insecure) {
    throw InvalidArgument(
        "--insecure contradicts the secret that was given: leave one of them out");
  }
  if (!given && !options.insecure) {
    throw InvalidArgument(
        "several nodes need a secret that they share: make a file with "
        "`(umask 077; head -c 32 /dev/urandom | base64 > job.secret)`, copy it to every node and "
        "pass --secret-file job.secret; or say --insecure on a network that you trust");
  }
  return given.value_or("");
}

// Where this node is the one that the endpoint names. A port that is taken may be that of another
// doctor on this machine, which can be joined.
UniqueFd listen_if_ours(const Endpoint& endpoint, const Console& console) {
  if (!is_this_machine(endpoint.host)) return {};
  try {
    const auto numeric = IpAddress::parse(endpoint.host);
    return numeric ? listen_on(numeric->to_string(), endpoint.port)
                   : listen_everywhere(endpoint.port);
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

int check_several(const DoctorOptions& options, const Environment& environment,
                  const std::string& version, std::ostream& out) {
  const Console console({.quiet = options.detail == ReportDetail::problems});
  SeveralNodesOptions several{.nodes = options.nodes,
                              .endpoints = {endpoint_of(options)},
                              .secret = secret_of(options, environment),
                              .shared_folder = options.shared_folder,
                              .join_limit = options.join_limit,
                              .most_rounds = options.all_pairs ? 0 : kMostRounds};
  several.smoke = {
      .enabled = options.smoke, .program = options.smoke_program, .secret = several.secret};
  several.say = [&](const std::string& text) { console.note(concat("doctor: ", text)); };
  if (!several.secret.empty()) guard_secret();
  UniqueFd listener = listen_if_ours(several.endpoints[0], console);
  const LocalReport local = check_this_machine(
      {.lockstep_version = version, .several_nodes = true, .shared_folder = options.shared_folder},
      environment);
  several.smoke.python = local.python;
  if (listener) {
    const DoctorReport report = examine_as_head(std::move(listener), local, several);
    print(report, options, out);
    return report.exit_code();
  }
  const DoctorEnd end = examine_as_member(local, several);
  console.note(concat(end.summary, "; the report is at ", several.endpoints[0].host));
  return end.code;
}

}  // namespace

int doctor_command(const std::vector<std::string>& arguments, const Environment& environment,
                   const std::string& version, std::ostream& out) {
  const DoctorOptions options = parse_doctor_options(arguments);
  if (options.help) {
    out << doctor_help();
    return 0;
  }
  if (options.nodes > 1) return check_several(options, environment, version, out);
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

}  // namespace lockstep
