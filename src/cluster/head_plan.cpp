#include "cluster/head_plan.h"

#include <sys/random.h>
#include <algorithm>
#include <filesystem>

#include "cluster/export_list.h"
#include "core/hmac.h"
#include "launch/addresses.h"
#include "launch/parse_options.h"
#include "launch/secret.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Options that say where nodes meet, which the head decides.
void check_meeting(const RunOptions& options) {
  for (const std::string name : {"node-rank", "local-addr"}) {
    if (options.given.contains(name)) {
      throw InvalidArgument(concat(
          "--", name, " is about one node, but all nodes are started from ", "here; leave it out"));
    }
  }
  if (options.rdzv_conf.contains("is_host")) {
    throw InvalidArgument(
        "--rdzv-conf: is_host is about one node, but all nodes are started from here; leave it "
        "out");
  }
  if (options.rdzv_backend == "etcd") {
    throw InvalidArgument(
        "--rdzv-backend is etcd, but nodes that are started from here end with this process, "
        "wherever they meet: leave it out, or start one launcher per node (docs/clusters.md)");
  }
  if (options.rdzv_backend != "static" && options.rdzv_backend != "c10d") {
    throw InvalidArgument(concat("--rdzv-backend is '", options.rdzv_backend,
                                 "', but nodes that are started from here meet here; leave it out, "
                                 "or start one launcher per node"));
  }
}

void note_what_has_no_effect(RunOptions& options) {
  for (const std::string name : {"master-addr", "master-port"}) {
    if (options.given.contains(name)) {
      options.notices.push_back(concat("--", name, " has no effect: the nodes meet where they are ",
                                       "started from; --rdzv-endpoint HOST:PORT chooses the port"));
    }
  }
}

void set_nodes(RunOptions& options, int hosts) {
  const bool said = options.given.contains("nnodes") && !options.nodes_auto;
  if (!said) {
    options.min_nodes = options.max_nodes = hosts;
  } else if (options.max_nodes != hosts) {
    throw InvalidArgument(concat("--nnodes asks for ", options.max_nodes, " nodes, but ", hosts,
                                 hosts == 1 ? " machine is" : " machines are",
                                 " named; leave --nnodes out, or choose machines with --include"));
  }
}

std::string random_word() {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char byte : random_bytes(6)) {
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

StarterKind starter_of(const RunOptions& options, const std::optional<Allocation>& allocation,
                       const std::vector<Host>& hosts, const Environment& environment) {
  if (options.starter) return starter_kind(*options.starter);
  if (!allocation || allocation->hosts.empty()) return StarterKind::ssh;
  const bool inside = std::ranges::all_of(hosts, [&](const Host& host) {
    return std::ranges::find(allocation->hosts, host.name, &Host::name) != allocation->hosts.end();
  });
  if (!inside) return StarterKind::ssh;
  if (allocation->scheduler == Scheduler::slurm) return StarterKind::srun;
  const std::string path = environment.get("PATH").value_or("");
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::string folder = path.substr(begin, path.find(':', begin) - begin);
    begin += folder.size() + 1;
    if (!folder.empty() && std::filesystem::exists(folder + "/pbsdsh")) return StarterKind::pbsdsh;
  }
  return StarterKind::ssh;
}

// Variables that stand for options count on every node as they do here.
Environment::Variables option_variables(const Environment& environment) {
  Environment::Variables variables;
  for (const Option& option : all_options()) {
    if (option.variable.empty() || option.variable.starts_with("LOCKSTEP_SECRET")) continue;
    if (const auto value = environment.get(option.variable)) {
      variables[std::string(option.variable)] = *value;
    }
  }
  return variables;
}

// The command line comes first, then what the list of machines says.
std::optional<std::string> workers_of(const RunOptions& options, const Host& host) {
  if (options.given.contains("nproc-per-node") || !host.slots) return std::nullopt;
  return std::to_string(*host.slots);
}

}  // namespace

bool HeadPlan::is_all_here() const {
  return std::ranges::all_of(
      nodes, [](const HeadNode& each) { return each.starter.kind == StarterKind::local; });
}

HeadPlan plan_head(const HeadRequest& request, const Environment& environment) {
  HeadPlan plan{.options = request.options,
                .environment = environment,
                .coordinator = {},
                .secret = "",
                .listen_host = "",
                .nodes = {}};
  RunOptions& options = plan.options;
  check_meeting(options);
  note_what_has_no_effect(options);
  set_nodes(options, static_cast<int>(request.hosts.size()));
  plan.secret =
      given_or_new_secret({.file = options.secret_file, .insecure = options.insecure}, environment);
  if (!options.rdzv_endpoint.empty()) {
    const Endpoint endpoint = parse_endpoint(options.rdzv_endpoint, 0);
    plan.listen_host = endpoint.host;
    plan.listen_port = endpoint.port;
  }
  const std::string id = random_word();
  if (!options.given.contains("rdzv-id")) {
    options.rdzv_id = request.allocation && !request.allocation->job_id.empty()
                          ? concat("job", request.allocation->job_id, "-", id)
                          : concat("job-", id);
  }
  place_node(options, {.min_nodes = options.min_nodes,
                       .max_nodes = options.max_nodes,
                       .node_rank = 0,
                       .endpoint = {.host = "head", .port = 1},
                       .hosts = false,
                       .headed = true,
                       .run_id = options.rdzv_id,
                       .workers = std::nullopt});
  plan.coordinator = coordinator_options(options, terms_of(options, environment));

  const StarterKind kind = starter_of(options, request.allocation, request.hosts, environment);
  plan.starter = kind;
  const bool exports_all = !exports_nothing_else(options.export_list);
  StarterOptions starter{.kind = kind,
                         .lockstep = options.remote_lockstep.value_or(request.program),
                         .ssh_options = shell_words(options.ssh_options, "--ssh-options"),
                         .brief_prefix = concat(request.working_directory, "/.lockstep-", id, "-"),
                         .export_all = exports_all};
  // srun takes the environment along by itself; what was said in so many words comes on top.
  const bool has_all = kind == StarterKind::srun && exports_all;
  const Environment::Variables exported = exported_variables(
      environment, has_all ? concat("NONE,", options.export_list) : options.export_list);
  for (const Host& host : request.hosts) {
    plan.coordinator.expected_hosts.push_back(host.name);
    HeadNode node{.host = host,
                  .brief = {.version = request.version,
                            .host = host.name,
                            .node_rank = static_cast<int>(plan.nodes.size()),
                            .min_nodes = options.min_nodes,
                            .max_nodes = options.max_nodes,
                            .endpoints = {},
                            .secret = plan.secret,
                            .run_id = options.rdzv_id,
                            .command = request.command,
                            .arguments = request.arguments,
                            .option_variables = option_variables(environment),
                            .environment = exported,
                            .working_directory = request.working_directory,
                            .workers = workers_of(options, host),
                            .gpus = host.gpus},
                  .starter = starter};
    // There is no need to log in where one is.
    if (kind == StarterKind::ssh && is_this_machine(host.name)) {
      node.starter.kind = StarterKind::local;
      node.starter.lockstep = request.program;
    }
    plan.nodes.push_back(std::move(node));
  }
  return plan;
}

std::string describe_head(const HeadPlan& plan) {
  const JobTerms& terms = plan.coordinator.terms;
  std::string text =
      concat("job ", terms.run_id, ": ", terms.max_nodes, terms.max_nodes == 1 ? " node" : " nodes",
             " started from here, up to ", terms.max_restarts,
             terms.max_restarts == 1 ? " restart" : " restarts", "\n");
  text +=
      concat("coordinator: here, ",
             plan.listen_port == 0 ? std::string("a free port") : concat("port ", plan.listen_port),
             "; links are ",
             plan.secret.empty() ? "not authenticated (--insecure)"
             : plan.options.tls  ? "authenticated and encrypted (--tls)"
                                 : "authenticated",
             "\n");
  for (const HeadNode& node : plan.nodes) {
    text += concat("node ", node.brief.node_rank, ": ", node.host.name,
                   ", workers: ", node.brief.workers.value_or(plan.options.nproc_per_node));
    if (!node.host.gpus.empty()) {
      text += " on GPUs";
      for (const int gpu : node.host.gpus) text += concat(" ", gpu);
    }
    text += "\n  command:";
    const StartCommand command =
        start_command(node.starter, node.host, {"agent"}, "", node.brief.node_rank);
    for (const std::string& word : command.argv) text += " " + shell_quoted(word);
    text += "\n  environment:";
    for (const auto& [name, value] : node.brief.environment) text += concat(" ", name);
    text += "\n";
  }
  return text;
}

}  // namespace lockstep
