#include "launch/parse_options.h"

#include <unistd.h>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "launch/argument_parser.h"
#include "launch/endpoint.h"
#include "launch/option_table.h"
#include "launch/rendezvous_config.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr int kAnyPort = 0;
constexpr int kDefaultShutdownSeconds = 30;

// A random (version 4) UUID, as torchrun gives to jobs without an id.
std::string random_id() {
  std::array<std::uint8_t, 16> bytes;
  // Not std::random_device: that of g++ 12 needs a newer libc than all the rest of the launcher.
  if (::getentropy(bytes.data(), bytes.size()) != 0) {
    throw SystemError(concat("the system has no random numbers: ", std::strerror(errno)));
  }
  bytes[6] = static_cast<std::uint8_t>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<std::uint8_t>((bytes[8] & 0x3f) | 0x80);
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) {
      text += '-';
    }
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 0x0f];
  }
  return text;
}

void take_command_line(PendingOptions& pending, const ParsedArguments& parsed) {
  for (const auto& [option, text] : parsed.options) {
    if (option->takes_value()) {
      option->set(pending, {concat("--", option->name), text});
    } else {
      pending.options.*(option->flag) = true;
    }
    pending.options.given.emplace(option->name);
  }
}

void take_variables(PendingOptions& pending, const Environment& environment) {
  for (const Option& option : all_options()) {
    if (option.variable.empty() || pending.options.given.contains(std::string(option.name))) {
      continue;
    }
    const auto text = environment.get(option.variable);
    if (!text) {
      continue;
    }
    const OptionValue value{std::string(option.variable), *text};
    if (option.takes_value()) {
      option.set(pending, value);
    } else {
      pending.options.*(option.flag) = parse_flag_variable(value);
    }
    pending.options.given.emplace(option.name);
  }
}

void check_program(const RunOptions& options, LaunchCommand command) {
  if (options.script.empty()) {
    throw InvalidArgument(concat("no program was given; write ", to_string(command),
                                 " [OPTIONS] SCRIPT [ARGUMENTS]"));
  }
  if (options.module && options.run_path) {
    throw InvalidArgument("--module and --run-path contradict each other; give one");
  }
  if (options.module && options.no_python) {
    throw InvalidArgument("--module and --no-python contradict each other; give one");
  }
  if (options.no_python && !options.use_env) {
    throw InvalidArgument("--no-python needs --use-env under lockstep launch");
  }
}

// The rule of --standalone, which also holds where one node was given nowhere to meet.
void meet_nobody(RunOptions& options) {
  if (options.min_nodes > 1) {
    throw InvalidArgument(
        concat("--standalone is for one node, but --nnodes asks for at least ", options.min_nodes));
  }
  for (const std::string name : {"rdzv-backend", "rdzv-endpoint", "rdzv-id"}) {
    if (options.given.contains(name) && (options.standalone || name == "rdzv-id")) {
      options.notices.push_back(concat(
          "--", name, " has no effect: one node that meets nobody gets a free port and a new id"));
    }
  }
  options.standalone = true;
  options.max_nodes = 1;
  options.rdzv_backend = "c10d";
  options.rdzv_endpoint = "localhost:0";
  options.rdzv_id = random_id();
}

void meet_statically(RunOptions& options) {
  if (options.min_nodes != options.max_nodes) {
    options.notices.push_back(concat("the static backend waits for all of --nnodes, ",
                                     options.max_nodes, "; use --rdzv-backend=c10d for a range"));
    options.min_nodes = options.max_nodes;
  }
  options.node_rank = options.node_rank.value_or(0);
  if (*options.node_rank >= options.max_nodes) {
    throw InvalidArgument(concat("--node-rank is ", *options.node_rank,
                                 "; it must be less than --nnodes, which is ", options.max_nodes));
  }
}

void meet_dynamically(RunOptions& options) {
  for (const std::string name : {"master-addr", "master-port"}) {
    if (options.given.contains(name)) {
      options.notices.push_back(concat("--", name, " has no effect under ", options.rdzv_backend,
                                       ": the nodes meet at --rdzv-endpoint"));
    }
  }
}

bool nowhere_to_meet(const RunOptions& options) {
  return options.rdzv_backend == "static" && options.rdzv_endpoint.empty() &&
         !options.master_port && options.max_nodes == 1;
}

void check_tls(const RunOptions& options) {
  if (options.tls && options.insecure) {
    throw InvalidArgument(
        "--tls and --insecure contradict each other: the key is made from the job's secret");
  }
}

void settle_meeting(PendingOptions& pending) {
  RunOptions& options = pending.options;
  if (options.secret_file && options.insecure) {
    throw InvalidArgument("--secret-file and --insecure contradict each other; give one");
  }
  check_tls(options);
  if (options.standalone || nowhere_to_meet(options)) {
    meet_nobody(options);
  } else {
    // Both only to refuse what is malformed before anything else is said; choose_host() decides.
    if (options.rdzv_backend == "etcd") {
      parse_etcd_endpoints(options.rdzv_endpoint, pending.rdzv_endpoint.source);
    } else {
      parse_endpoint(options.rdzv_endpoint, kAnyPort, pending.rdzv_endpoint.source);
    }
    parse_host(options.master_addr, "--master-addr");
    options.rdzv_backend == "static" ? meet_statically(options) : meet_dynamically(options);
  }
  if (options.max_nodes > 1 && !options.given.contains("rdzv-endpoint") &&
      !options.given.contains("master-addr")) {
    options.notices.push_back(
        concat("the nodes meet on loopback, which is every machine's own; give ",
               options.rdzv_backend == "static" ? "--master-addr" : "--rdzv-endpoint",
               " unless all of them run on this machine"));
  }
  options.rendezvous =
      read_rendezvous_conf(options.rdzv_conf, options.rdzv_backend, pending.rdzv_conf.source);
}

// What is said about machines must not be said in vain.
void check_machines(RunOptions& options) {
  if (options.hosts && options.hostfile) {
    throw InvalidArgument("--hosts and --hostfile contradict each other; give one");
  }
  if (options.include && options.exclude) {
    throw InvalidArgument("--include and --exclude contradict each other; give one");
  }
  if (options.seeks_nodes()) {
    if (options.standalone) {
      throw InvalidArgument(
          concat("--standalone is for this machine alone, but ",
                 options.nodes_auto ? "--nnodes is auto" : "other machines are named"));
    }
    return;
  }
  for (const std::string name : {"include", "exclude"}) {
    if (options.given.contains(name)) {
      throw InvalidArgument(concat("--", name, " chooses among machines, and none are named; give ",
                                   "--nnodes auto, --hosts or --hostfile"));
    }
  }
  for (const std::string name : {"starter", "ssh-options", "export", "remote-lockstep"}) {
    if (options.given.contains(name)) {
      options.notices.push_back(concat("--", name, " has no effect: nothing is started on other ",
                                       "machines without --nnodes auto, --hosts or --hostfile"));
    }
  }
}

void settle_stopping(RunOptions& options, const Environment& environment) {
  if (!options.given.contains("signals-to-handle")) {
    options.stop_signals = parse_signals({"--signals-to-handle", options.signals_to_handle});
  }
  if (!options.shutdown_timeout) {
    constexpr const char* kVariable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
    const auto text = environment.get(kVariable);
    options.shutdown_timeout = std::chrono::seconds(text ? parse_int_at_least({kVariable, *text}, 0)
                                                         : kDefaultShutdownSeconds);
  }
}

void settle_output(RunOptions& options, const Environment& environment) {
  options.tee_prefix = environment.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  if (environment.get("TORCHELASTIC_ENABLE_FILE_TIMER") == "1") {
    options.notices.push_back(
        "TORCHELASTIC_ENABLE_FILE_TIMER has no effect: timers of torch.distributed.elastic.timer "
        "are not supported");
  }
}

RunOptions parse(const std::vector<std::string>& arguments, const Environment& environment,
                 LaunchCommand command) {
  const ParsedArguments parsed = parse_arguments(arguments, command);
  PendingOptions pending;
  pending.options.use_env = command == LaunchCommand::run;
  take_command_line(pending, parsed);
  if (pending.options.help) {
    RunOptions help;
    help.help = true;
    return help;
  }
  take_variables(pending, environment);
  RunOptions& options = pending.options;
  if (!parsed.program.empty()) {
    options.script = parsed.program.front();
    options.script_arguments.assign(parsed.program.begin() + 1, parsed.program.end());
  }
  check_program(options, command);
  check_machines(options);
  if (!options.seeks_nodes()) settle_meeting(pending);
  settle_stopping(options, environment);
  settle_output(options, environment);
  return std::move(options);
}

}  // namespace

void place_node(RunOptions& options, const NodePlacement& placement) {
  check_tls(options);
  options.min_nodes = placement.min_nodes;
  options.max_nodes = placement.max_nodes;
  if (placement.workers) options.nproc_per_node = *placement.workers;
  if (placement.run_id) options.rdzv_id = *placement.run_id;
  options.node_rank = placement.node_rank;
  options.headed = placement.headed;
  options.given.insert({"node-rank", "rdzv-endpoint"});
  if (options.rdzv_backend == "etcd" && !placement.headed) {
    parse_etcd_endpoints(options.rdzv_endpoint, "--rdzv-endpoint");
  } else {
    options.rdzv_backend = "c10d";
    options.rdzv_endpoint = placement.endpoint.to_string();
    options.rdzv_conf["is_host"] = placement.hosts ? "1" : "0";
  }
  if (placement.max_nodes == 1 && placement.hosts) {
    options.rdzv_conf.erase("is_host");
    meet_nobody(options);
  }
  options.rendezvous = read_rendezvous_conf(options.rdzv_conf, options.rdzv_backend, "--rdzv-conf");
}

RunOptions parse_run_options(const std::vector<std::string>& arguments,
                             const Environment& environment) {
  return parse(arguments, environment, LaunchCommand::run);
}

RunOptions parse_launch_options(const std::vector<std::string>& arguments,
                                const Environment& environment) {
  return parse(arguments, environment, LaunchCommand::launch);
}

}  // namespace lockstep
