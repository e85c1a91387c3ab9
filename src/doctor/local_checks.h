#pragma once

#include <map>
#include <string>

#include "doctor/finding.h"
#include "doctor/network_facts.h"
#include "lockstep/environment.h"

namespace lockstep {

struct LocalCheckOptions {
  std::string lockstep_version;
  bool several_nodes = false;
  std::string shared_folder;  // --shared-dir; empty: none
};

/// What one node says about itself.
struct LocalReport {
  std::string host;
  Findings findings;
  // What should be the same on all nodes, by name: "torch" is "2.11.0".
  std::map<std::string, std::string> traits;
  NetworkFacts network;
  std::string python;  // one that has torch; empty: none
  int gpus = 0;
};

/// All checks that need this machine alone. May take some seconds; nothing in it waits for ever.
LocalReport check_this_machine(const LocalCheckOptions& options, const Environment& environment);

}  // namespace lockstep
