#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/allocation.h"
#include "cluster/brief.h"
#include "cluster/hosts.h"
#include "cluster/start_command.h"
#include "launch/job_plan.h"
#include "launch/option_table.h"
#include "launch/options.h"
#include "lockstep/environment.h"

namespace lockstep {

/// One machine of a job that is started from here.
struct HeadNode {
  Host host;
  Brief brief;  // without the coordinator's endpoints, which are not known yet
  StarterOptions starter;
};

/// All that is known about a job before its head starts anything.
struct HeadPlan {
  RunOptions options;
  Environment environment;
  CoordinatorOptions coordinator;
  std::string secret;       // empty: --insecure
  std::string listen_host;  // that the user gave for other machines to connect to; empty: any
  int listen_port = 0;      // 0: a free one
  StarterKind starter = StarterKind::ssh;
  std::vector<HeadNode> nodes;

  bool is_all_here() const;
};

struct HeadRequest {
  LaunchCommand command = LaunchCommand::run;
  std::vector<std::string> arguments;    // as given
  RunOptions options;                    // what they say
  std::vector<Host> hosts;               // not empty
  std::optional<Allocation> allocation;  // that this process runs in
  std::string version;
  std::string program;  // the path of this program
  std::string working_directory;
};

/// Throws InvalidArgument for what cannot work, before anything has happened.
HeadPlan plan_head(const HeadRequest& request, const Environment& environment);

/// What would be started, for --dry-run. The secret is not shown.
std::string describe_head(const HeadPlan& plan);

}  // namespace lockstep
