#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/allocation.h"
#include "cluster/head_plan.h"
#include "doctor/doctor_options.h"
#include "lockstep/environment.h"

namespace lockstep {

/// Where the nodes are that --hosts, --hostfile or --nnodes auto mean.
struct HostsPlan {
  std::optional<TaskPlace> place;    // one doctor per node is running already, and this is one
  std::vector<std::string> notices;  // for people, about options of which nothing comes there
  std::string source;                // by what they were found, for people
  std::optional<HeadPlan> head;      // otherwise: what to start where
};

/// By the rules of `lockstep run`, of which it uses the options. `arguments` are the doctor's own,
/// for those on other machines. Throws InvalidArgument for what cannot work.
HostsPlan plan_hosts(const DoctorOptions& options, const std::vector<std::string>& arguments,
                     const Environment& environment, const std::string& version);

}  // namespace lockstep
