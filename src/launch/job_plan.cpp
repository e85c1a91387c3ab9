#include "launch/job_plan.h"

#include <sys/random.h>
#include <unistd.h>
#include <algorithm>
#include <array>

#include "launch/addresses.h"
#include "launch/device_count.h"
#include "launch/expected_hosts.h"
#include "launch/ip_address.h"
#include "launch/numa_binding.h"
#include "launch/program_identity.h"
#include "launch/secret.h"
#include "launch/version.h"
#include "launch/worker_environment.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Names a process of the launcher among all that ever ran.
std::string random_id() {
  std::array<unsigned char, 16> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw_errno("getrandom");
  }
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Names of pods are known when those run, which may take minutes.
Time start_timeout_of(const RunOptions& options, const Environment& environment) {
  const bool names_come_late = environment.has("KUBERNETES_SERVICE_HOST");
  if (names_come_late && !options.given.contains("start-timeout")) return Time(0);
  return options.start_timeout;
}

// What its users call this machine. Slurm's nodes may have other names than their machines.
std::string name_of_node(const Environment& environment) {
  const auto name = environment.get("SLURMD_NODENAME");
  return name && !name->empty() && environment.has("SLURM_STEP_ID") ? *name
                                                                    : LocalMachine::current().name;
}

struct Beats {
  Time interval, limit;
};

// torchrun's default takes 15 s to notice a lost node; connections make 6 safe.
Beats beats_of(const RunOptions& options) {
  // On one node the two are one process: neither can lose the other.
  if (options.one_node()) return {std::chrono::seconds(1), std::chrono::hours(24 * 365)};
  const bool given = options.rdzv_conf.contains("keep_alive_interval") ||
                     options.rdzv_conf.contains("keep_alive_max_attempt");
  if (!given) return {std::chrono::seconds(1), std::chrono::seconds(6)};
  const Time interval = options.rendezvous.keep_alive_interval;
  return {interval, interval * (options.rendezvous.keep_alive_max_attempt + 1)};
}

Time grace_of(const RunOptions& options) {
  return options.shutdown_timeout.value_or(std::chrono::seconds(30));
}

// Every node of a static job has one; elsewhere it only orders the nodes.
std::optional<int> node_rank_of(const RunOptions& options) {
  if (options.one_node()) return std::nullopt;
  if (options.rdzv_backend == "static") return options.node_rank.value_or(0);
  return options.given.contains("node-rank") ? options.node_rank : std::nullopt;
}

void place_on_one_node(JobPlan& plan) {
  plan.agent.self.address = plan.store_address =
      advertised_address({.max_nodes = 1, .local_addr = plan.options.local_addr, .coordinator = {}},
                         LocalMachine::current());
  const RunOptions& options = plan.options;
  if (options.rdzv_backend != "static") return;
  // Scripts may use the address for more than the store, so they get it as it was given.
  plan.master_addr = plan.meeting.endpoint.host;
  plan.store_address = resolve_host(plan.master_addr, "--master-addr");
  plan.store_port = plan.meeting.endpoint.port;
}

// The coordinator may be on any node, and a leader that dies is missed when its lease is over.
void find_through_etcd(JobPlan& plan) {
  if (plan.options.store == StoreMode::local) {
    throw InvalidArgument(
        "--store local contradicts --rdzv-backend etcd: that store is with the coordinator, which "
        "moves to another node when its own is lost; leave one of them out");
  }
  plan.etcd = {.servers = parse_etcd_endpoints(plan.options.rdzv_endpoint),
               .prefix = plan.options.rendezvous.etcd_prefix,
               .access = etcd_access(plan.options, plan.environment)};
  plan.agent.apart_limit = plan.agent.terms.beat_limit + 2 * plan.etcd.lease;
  plan.agent.coordinator = concat("etcd's choice (", plan.options.rdzv_endpoint, ")");
}

void place_among_nodes(JobPlan& plan) {
  plan.secret = shared_secret({.file = plan.options.secret_file, .insecure = plan.options.insecure},
                              plan.environment, "a job on several nodes");
  const LocalMachine machine = LocalMachine::current();
  plan.agent.self.address = advertised_address({.max_nodes = std::max(plan.options.max_nodes, 2),
                                                .local_addr = plan.options.local_addr,
                                                .coordinator = plan.meeting.endpoint},
                                               machine);
  plan.agent.self.program = identify_program(plan.options, plan.command);
  const bool local_store = plan.options.store == StoreMode::local;
  if (local_store && !plan.share_store && plan.options.rdzv_backend != "static") {
    throw InvalidArgument(
        "--store local contradicts TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, with which rank 0 makes a "
        "store of its own: leave one of them out");
  }
  plan.store_address = local_store ? "127.0.0.1" : plan.agent.self.address;
  const auto address = IpAddress::parse(plan.agent.self.address);
  if (address && !address->is_loopback()) {
    plan.interface = machine.interface_of(*address).value_or("");
  }
}

// A spare is started before it is known whose place it will take.
void check_spares(const JobPlan& plan) {
  const RunOptions& options = plan.options;
  if (options.spares == 0) return;
  const auto refuse = [&](const std::string& reason) {
    throw InvalidArgument(concat("--spares is ", options.spares, ", but ", reason));
  };
  if (plan.agent.terms.max_replacements == 0) {
    refuse(options.recovery == RecoveryMode::restart
               ? "with --recovery restart no worker's place is taken by another"
           : options.max_replacements == 0
               ? "with --max-replacements 0 no worker's place is taken by another"
               : "with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 no worker's place is taken by another");
  }
  if (options.virtual_local_rank) {
    refuse("with --virtual-local-rank each worker sees one device only, from its start on");
  }
  if (options.numa_binding) refuse("with --numa-binding each worker has its own processors");
  if (plan.workers > 1 && plan.command.argv(0) != plan.command.argv(1)) {
    refuse("the program's arguments name the local rank, which a spare does not know");
  }
}

// The rest is for the coordinator to see, which knows all nodes.
void check_min_world(const JobPlan& plan) {
  const RunOptions& options = plan.options;
  const auto refuse = [](const std::string& what, const std::string& reason) {
    throw InvalidArgument(concat(what, ", but ", reason));
  };
  const std::string pause = concat("--rejoin-after is ", whole_seconds(options.rejoin_after));
  const bool has_pause = options.given.contains("rejoin-after");
  if (!options.min_world) {
    if (has_pause) refuse(pause, "no worker is left out unless --min-world is given");
    return;
  }
  const std::string least = concat("--min-world is ", *options.min_world);
  if (options.recovery == RecoveryMode::restart) {
    refuse(least, "with --recovery restart no worker goes on without the others");
  }
  if (!plan.agent.terms.in_place()) {
    refuse(least, "with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 no worker goes on without the others");
  }
  if (plan.one_node && *options.min_world > plan.workers) {
    refuse(least,
           concat("the job has only ", plan.workers, plan.workers == 1 ? " worker" : " workers"));
  }
  if (has_pause && options.max_replacements == 0) {
    refuse(pause, "with --max-replacements 0 no worker is started again");
  }
}

}  // namespace

bool shares_store(const Environment& environment) {
  return environment.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1";
}

JobTerms terms_of(const RunOptions& options, const Environment& environment) {
  // Where rank 0 makes a store of its own, the next epoch has none to meet at.
  const bool replaces = options.recovery == RecoveryMode::in_place &&
                        (shares_store(environment) || options.rdzv_backend == "static");
  const Beats beats = beats_of(options);
  return {.run_id = options.rdzv_id,
          .min_nodes = options.min_nodes,
          .max_nodes = options.max_nodes,
          .max_restarts = options.max_restarts,
          .max_replacements = replaces ? options.max_replacements : 0,
          .min_world = replaces ? options.min_world.value_or(0) : 0,
          .local_store = !options.one_node() && options.store == StoreMode::local,
          .beat_interval = beats.interval,
          .beat_limit = beats.limit};
}

CoordinatorOptions coordinator_options(const RunOptions& options, const JobTerms& terms) {
  return {.terms = terms,
          .join_timeout = options.rendezvous.join_timeout,
          .last_call = options.rendezvous.last_call_timeout,
          .stop_limit = 2 * grace_of(options) + std::chrono::seconds(30),
          .rejoin_after = options.rejoin_after,
          .surveys_network = options.network_check};
}

std::string resolve_host(const std::string& host, const std::string& option) {
  std::string reason;
  const std::vector<IpAddress> addresses = resolve(host, &reason);
  if (addresses.empty()) {
    throw InvalidArgument(concat(option, " is '", host, "', which is no known host: ", reason));
  }
  const auto v4 = std::ranges::find(addresses, AF_INET, &IpAddress::family);
  return (v4 == addresses.end() ? addresses.front() : *v4).to_string();
}

JobPlan plan_job(const RunOptions& options, const Environment& environment) {
  JobPlan plan{.options = options, .environment = environment};
  plan.command = find_worker_command(options, environment);
  plan.workers = resolve_nproc(options.nproc_per_node, environment);
  plan.meeting =
      choose_host(options, [](const std::string& host) { return is_this_machine(host); });
  plan.one_node = options.one_node();
  if (!plan.one_node && options.node_rank.value_or(0) >= options.max_nodes) {
    throw InvalidArgument(concat("--node-rank is ", *options.node_rank,
                                 "; it must be below the number of nodes, ", options.max_nodes));
  }
  plan.host = name_of_node(environment);
  plan.share_store = shares_store(environment);
  if (options.virtual_local_rank) check_visible_devices(environment, plan.workers);

  const JobTerms terms = terms_of(options, environment);
  const Time grace = grace_of(options);
  plan.agent = {.self = {.id = random_id(),
                         .host = plan.host,
                         .address = "",
                         .seen_at = "",
                         .node_rank = node_rank_of(options),
                         .workers = plan.workers,
                         .role = options.role,
                         .pid = ::getpid(),
                         .version = lockstep_version(),
                         .program = {}},
                .terms = terms,
                .hosts_coordinator = plan.meeting.hosts,
                .coordinator = plan.meeting.endpoint.to_string(),
                .coordinator_may_return = !options.headed,
                .grace = grace,
                .join_timeout = options.rendezvous.join_timeout,
                .start_timeout = start_timeout_of(options, environment)};
  if (plan.one_node) {
    plan.agent.hosts_coordinator = true;
    place_on_one_node(plan);
  } else {
    place_among_nodes(plan);
    if (options.rdzv_backend == "etcd") find_through_etcd(plan);
  }
  plan.coordinator = coordinator_options(options, terms);
  ExpectedHosts expected = expected_hosts(environment, options.max_nodes);
  plan.agent.nodes_start_together = !expected.names.empty() && !options.headed;
  plan.coordinator.expected_hosts = std::move(expected.names);
  plan.coordinator.cure_if_alone = std::move(expected.cure);
  plan.coordinator.start_timeout = plan.agent.start_timeout;
  if (options.numa_binding) {
    plan.cpus =
        bind_ranks(*options.numa_binding, plan.workers, find_gpus(environment).gpus, CpuTopology());
  }
  check_spares(plan);
  check_min_world(plan);
  return plan;
}

}  // namespace lockstep
