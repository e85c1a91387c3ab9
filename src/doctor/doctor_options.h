#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "doctor/report.h"
#include "lockstep/environment.h"

namespace lockstep {

/// What `lockstep doctor` was told.
struct DoctorOptions {
  int nodes = 1;  // --nnodes
  // --hosts, --hostfile, --nnodes auto and what goes with them, as lockstep run takes it; empty:
  // nothing is to be started elsewhere.
  std::vector<std::string> host_words;
  std::optional<std::string> prologue;     // is among them, too
  bool seeks_hosts = false;                // one of the first three was given
  bool agent = false;                      // --agent: started by a doctor on another machine
  std::optional<std::string> brief_file;   // of an agent
  std::string endpoint;                    // --rdzv-endpoint
  std::optional<std::string> secret_file;  // --secret-file
  bool insecure = false;
  bool tls = false;
  std::chrono::milliseconds join_limit = std::chrono::seconds(60);  // --timeout
  bool all_pairs = false;
  std::string shared_folder;  // --shared-dir
  bool smoke = false;
  std::string smoke_program;
  bool json = false;
  ReportDetail detail = ReportDetail::usual;
  bool help = false;
};

/// Throws InvalidArgument naming the option, its value and the rule.
/// LOCKSTEP_TLS counts as for lockstep run.
DoctorOptions parse_doctor_options(const std::vector<std::string>& arguments,
                                   const Environment& environment = Environment({}));

/// The answer to --help.
std::string doctor_help();

}  // namespace lockstep
