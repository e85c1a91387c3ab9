#include "launch/dry_run.h"

#include <filesystem>

#include "launch/membership.h"
#include "launch/placement.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// As a shell would read it back.
std::string quoted(const std::string& word) {
  static constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string port_text(int port) {
  return port == 0 ? "a free port" : concat("port ", port);
}

std::string describe_store(const JobPlan& plan, const Membership& place) {
  if (plan.agent.terms.local_store) {
    return "127.0.0.1, a free port, passed on to the coordinator's node";
  }
  return concat(place.group_rank == 0 ? concat(plan.store_address, ", ") : "node 0, ",
                port_text(plan.store_port));
}

std::string describe_meeting(const JobPlan& plan) {
  if (plan.one_node) return "";
  return concat("coordinator: ", plan.meeting.endpoint.to_string(), ", ",
                plan.agent.hosts_coordinator ? "hosted by this node" : "on another node", " (",
                plan.meeting.reason, "); links are ",
                plan.secret.empty() ? "not authenticated (--insecure)"
                : plan.options.tls  ? "authenticated and encrypted (--tls)"
                                    : "authenticated",
                "\n");
}

// What will be known only when the job starts.
constexpr const char* kChosen = "<chosen at start>";
constexpr const char* kRunDirectory = "<run directory>";

std::string run_directory_of(const JobPlan& plan) {
  const auto& given = plan.options.run_dir;
  return given && !given->empty() ? std::filesystem::absolute(*given).lexically_normal().string()
                                  : kRunDirectory;
}

std::string error_file_of(const JobPlan& plan, const Placement& placement) {
  const auto& log_dir = plan.options.log_dir;
  if (log_dir == "/dev/null") return "";
  if (log_dir) {
    return concat(*log_dir, "/", plan.options.rdzv_id, "_", kChosen, "/attempt_0/",
                  placement.local_rank, "/error.json");
  }
  return concat(run_directory_of(plan), "/logs/attempt_1/", placement.rank, "/error.json");
}

std::string master_addr_of(const JobPlan& plan, const Placement& placement) {
  const bool elsewhere =
      placement.group_rank != 0 && plan.master_addr.empty() && !plan.agent.terms.local_store;
  return elsewhere ? "<node 0's address>" : placement.master_addr;
}

Environment::Variables variables_of(const JobPlan& plan, Placement placement) {
  placement.run_dir = run_directory_of(plan);
  placement.agent_socket = placement.run_dir + "/agent.sock";
  placement.error_file = error_file_of(plan, placement);
  placement.master_addr = master_addr_of(plan, placement);
  Environment::Variables variables = variables_of_worker(plan, placement);
  if (placement.master_port == 0) variables["MASTER_PORT"] = kChosen;
  return variables;
}

std::string describe_worker(const JobPlan& plan, const Placement& placement) {
  std::string text = concat("rank ", placement.rank, " (local rank ", placement.local_rank, ")");
  if (!plan.cpus.empty()) {
    const CpuSet& cpus = plan.cpus[static_cast<std::size_t>(placement.local_rank)];
    text += concat(" on processors ", format_cpu_list(cpus));
  }
  text += "\n  command:";
  for (const std::string& word : plan.command.argv(placement.local_rank))
    text += " " + quoted(word);
  text += "\n  environment:";
  for (const auto& [name, value] : variables_of(plan, placement)) {
    if (plan.environment.get(name) != value) text += concat(" ", name, "=", quoted(value));
  }
  return text + "\n";
}

}  // namespace

std::string describe_plan(const JobPlan& plan) {
  const JobTerms& terms = plan.agent.terms;
  // Of the other nodes only their number is known before they have met; this node stands where its
  // node rank says, and all nodes are taken to be alike.
  std::vector<NodeInfo> nodes(static_cast<std::size_t>(terms.max_nodes), plan.agent.self);
  const int self = plan.agent.self.node_rank.value_or(0);
  const Membership place =
      form_memberships(nodes, /*epoch=*/1, /*restart_count=*/0)[static_cast<std::size_t>(self)];

  std::string text = concat(
      "job ", terms.run_id, ": ", terms.max_nodes, terms.max_nodes == 1 ? " node, " : " nodes, ",
      plan.workers, plan.workers == 1 ? " worker" : " workers",
      plan.options.spares == 0   ? ""
      : plan.options.spares == 1 ? " and a spare"
                                 : concat(" and ", plan.options.spares, " spares"),
      " on this one, up to ", terms.max_restarts,
      terms.max_restarts == 1 ? " restart" : " restarts", "\n");
  text += describe_meeting(plan);
  text += concat("node ", self, ": ", plan.host, " (", plan.agent.self.address, ")\n");
  text += concat("store: ", describe_store(plan, place), "\n");
  for (int local_rank = 0; local_rank < plan.workers; ++local_rank) {
    text += describe_worker(
        plan,
        place_worker(plan, StartWorkers{place, plan.store_address, plan.store_port}, local_rank));
  }
  return text;
}

}  // namespace lockstep
