#include "cluster/cluster_run.h"

#include <unistd.h>
#include <cstdio>

#include "cluster/allocation.h"
#include "cluster/find_hosts.h"
#include "cluster/head.h"
#include "cluster/own_place.h"
#include "cluster/prologue.h"
#include "launch/addresses.h"
#include "launch/events.h"
#include "launch/final_report.h"
#include "launch/ip_address.h"
#include "launch/line_prefix.h"
#include "launch/parse_options.h"
#include "launch/run_command.h"
#include "launch/run_directory.h"
#include "launch/secret.h"
#include "launch/unique_directory.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Beside what the nodes write, where they share a disk with this machine. None without --run-dir:
// who looks for a run looks there.
std::string head_events_path(const RunOptions& options) {
  if (!options.run_dir || options.run_dir->empty()) return "";
  try {
    make_directories(*options.run_dir);
  } catch (const Error&) {
    // It may be on the nodes alone. The log says so when it cannot be written.
  }
  return *options.run_dir + "/head.jsonl";
}

int run_head(const HeadPlan& plan) {
  const RunOptions& options = plan.options;
  Console console({.quiet = options.quiet});
  if (options.dry_run) {
    std::fputs(describe_head(plan).c_str(), stdout);
    return 0;
  }
  for (const std::string& notice : options.notices) console.note(notice);
  if (!plan.secret.empty()) guard_secret();
  SignalInbox signals(options.stop_signals);
  // In the temporary place: in --run-dir it would be taken for a node's.
  RunDirectory directory(
      {.path = std::nullopt, .run_id = options.rdzv_id, .host = LocalMachine::current().name},
      plan.environment);
  LogPump pump;
  console.set_sink([&](std::string text) { pump.print(STDERR_FILENO, std::move(text)); });
  EventLog events({.path = head_events_path(options),
                   .host = LocalMachine::current().name,
                   .listener = event_listener(options, pump),
                   .warn = [&](const std::string& text) { console.warn(text); }});
  EventLoop loop;
  Finish finish;
  std::vector<std::string> last_words;
  {
    Head head(plan, {.loop = loop,
                     .pump = pump,
                     .signals = signals,
                     .console = console,
                     .directory = directory,
                     .events = events});
    finish = head.run();
    last_words = head.last_words();
  }
  directory.finish(/*succeeded=*/true);  // nothing in it is of use to anybody any more
  while (!pump.drain_all(std::chrono::milliseconds(200)) && !signals.next()) {
  }
  console.set_sink({});
  if (finish.code != 0) {
    print_report(options, finish, plan.environment, console);
    for (const std::string& line : last_words) console.print(concat("  | ", line, "\n"));
  }
  return finish.code;
}

// One launcher per node is running already, and this is one of them.
int run_in_place(LaunchCommand command, RunOptions options, const Environment& environment,
                 const Allocation& allocation) {
  for (const std::string& notice : notices_in_place(options)) options.notices.push_back(notice);
  const TaskPlace& place = *allocation.place;
  NodePlacement placement{.min_nodes = place.nodes,
                          .max_nodes = place.nodes,
                          .node_rank = options.node_rank.value_or(place.node_rank),
                          .endpoint = {},
                          .hosts = false,
                          .headed = false,
                          .run_id = std::nullopt,
                          .workers = std::nullopt};
  if (options.rdzv_backend == "etcd") {
    // They meet there, whoever hosts.
  } else if (!options.rdzv_endpoint.empty()) {
    placement.endpoint = parse_endpoint(options.rdzv_endpoint, 29400);
  } else if (const auto endpoint = meeting_endpoint(allocation)) {
    placement.endpoint = *endpoint;
  } else if (place.nodes > 1) {
    throw InvalidArgument(concat("--nnodes is auto, and ", to_string(allocation.scheduler), " (",
                                 allocation.evidence,
                                 ") does not say where the first node is: give ",
                                 "--rdzv-endpoint HOST:PORT, the same for all"));
  }
  placement.hosts = placement.node_rank == 0;
  if (!options.given.contains("rdzv-id") && !allocation.job_id.empty()) {
    placement.run_id = allocation.job_id;
  }
  if (!options.given.contains("nproc-per-node")) placement.workers = place.workers;
  place_node(options, placement);
  if (placement.node_rank == 0) {
    options.notices.insert(
        options.notices.begin(),
        concat(to_string(allocation.scheduler), ": ", place.nodes,
               place.nodes == 1 ? " node" : " nodes, of which each has its launcher", " (",
               allocation.evidence, ")"));
  }
  return run_command(command, options, environment);
}

}  // namespace

int cluster_run(LaunchCommand command, const std::vector<std::string>& arguments,
                const Environment& own, const std::string& version) {
  RunOptions options = parse_options(command, arguments, own);
  if (options.help) return run_command(command, options, own);
  std::optional<FoundHosts> found;
  if (options.seeks_nodes()) found = find_hosts(options, own);
  if (!found || found->in_place()) {
    const Environment environment = options.prologue ? after_prologue(*options.prologue, own) : own;
    if (!found) return run_command(command, options, environment);
    return run_in_place(command, options, environment, *found->allocation);
  }
  if (options.prefix) check_line_prefix("--prefix", *options.prefix);
  HeadPlan plan = plan_head({.command = command,
                             .arguments = arguments,
                             .options = options,
                             .hosts = found->hosts,
                             .allocation = found->allocation,
                             .version = version,
                             .program = own_program(),
                             .working_directory = working_directory(own)},
                            own);
  const std::size_t nodes = found->hosts.size();
  plan.options.notices.insert(
      plan.options.notices.begin(),
      concat(nodes, nodes == 1 ? " node: " : " nodes: ", list_hosts(found->hosts), " (",
             found->source, "), started ",
             plan.is_all_here() ? "here" : concat("with ", to_string(plan.starter))));
  return run_head(plan);
}

}  // namespace lockstep
