#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cluster/head_plan.h"
#include "core/unique_fd.h"
#include "doctor/local_checks.h"
#include "doctor/messages.h"
#include "doctor/report.h"
#include "doctor/smoke.h"
#include "launch/endpoint.h"

namespace lockstep {

struct SeveralNodesOptions {
  int nodes = 2;
  std::vector<Endpoint> endpoints;  // of the head; tried in turn

  std::string secret;  // empty: --insecure
  bool tls = false;    // links and probes are encrypted
  std::string shared_folder;
  std::chrono::milliseconds join_limit = std::chrono::seconds(60);
  int most_rounds = 8;
  SmokeSetup smoke;
  std::function<void(const std::string&)> say;
};

/// Looks at all nodes from the one that the others come to.
DoctorReport examine_as_head(std::vector<UniqueFd> listeners, const LocalReport& local,
                             const SeveralNodesOptions& options);

/// Looks at all nodes from a machine that need not be one of them, and starts the doctors there.
DoctorReport examine_hosts(const HeadPlan& plan, const SeveralNodesOptions& options);

/// Goes to the head and answers its questions until it says how all ended. Throws SystemError if it
/// is not found or refuses.
DoctorEnd examine_as_member(const LocalReport& local, const SeveralNodesOptions& options);

}  // namespace lockstep
