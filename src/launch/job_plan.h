#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/agent.h"
#include "launch/coordinator.h"
#include "launch/cpu_set.h"
#include "launch/etcd_access.h"
#include "launch/host_choice.h"
#include "launch/options.h"
#include "launch/worker_command.h"
#include "lockstep/environment.h"

namespace lockstep {

/// Where nodes find the coordinator under --rdzv-backend etcd.
struct EtcdPlan {
  std::vector<Endpoint> servers;  // empty: another backend
  std::string prefix;             // of its keys
  EtcdAccess access = {};
  Time lease = std::chrono::seconds(3);
};

/// All that is known about a job on this node before anything is started: what the user asked for,
/// put together with what the machine is.
struct JobPlan {
  RunOptions options;
  Environment environment;
  std::string host;  // this machine's name
  int workers = 1;   // on this node
  WorkerCommand command;
  HostChoice meeting;
  bool one_node = true;
  std::string secret;  // empty: one node, or --insecure
  AgentOptions agent;
  CoordinatorOptions coordinator;
  EtcdPlan etcd;
  std::string coordinator_log;  // where a coordinator here keeps its records; empty: nowhere
  std::string store_address;    // numeric, where this node's store would listen
  int store_port = 0;           // 0: any free one
  bool share_store = true;      // workers use our store; otherwise rank 0 makes its own
  std::string master_addr;      // what workers are told instead of node 0's address; empty: that
  std::vector<CpuSet> cpus;     // by local rank; empty: not bound
  std::string interface;  // the network that Gloo and NCCL are told to use; empty: they choose
};

/// Throws InvalidArgument for what cannot work, before anything has happened. May wait for DNS.
JobPlan plan_job(const RunOptions& options, const Environment& environment);

/// What every node of the job must have been told alike, and what its coordinator goes by.
JobTerms terms_of(const RunOptions& options, const Environment& environment);
CoordinatorOptions coordinator_options(const RunOptions& options, const JobTerms& terms);

/// Whether workers use the launcher's store; otherwise rank 0 makes its own.
bool shares_store(const Environment& environment);

/// Looks up a host; the first address, IPv4 before IPv6. Throws InvalidArgument naming `option`.
std::string resolve_host(const std::string& host, const std::string& option);

}  // namespace lockstep
