#include "launch/option_table.h"

#include <array>

#include "launch/option_setters.h"

namespace lockstep {
namespace {

using Group = OptionGroup;
using Origin = OptionOrigin;

// Rows keep to the order of Option's fields; the columns that a row does not need are left out.
constexpr auto kOptions = std::to_array<Option>({
    {.name = "nnodes",
     .placeholder = "N|MIN:MAX|auto",
     .variable = "PET_NNODES",
     .group = Group::workers,
     .fallback = "1",
     .help =
         "Number of nodes, or the smallest and largest number with which the job may run. auto: "
         "all nodes of the allocation of Slurm, PBS, MPI or Kubernetes that this runs in.",
     .set = set_nodes},
    {.name = "nproc-per-node",
     .placeholder = "N|cpu|gpu|auto",
     .variable = "PET_NPROC_PER_NODE",
     .group = Group::workers,
     .fallback = "1",
     .choices = "cpu gpu auto",
     .help = "Workers on this node: a number, one for each CPU, one for each GPU, or one for each "
             "GPU where there are any and else for each CPU. Nodes may differ in it.",
     .set = set_processes},
    {.name = "role",
     .placeholder = "NAME",
     .variable = "PET_ROLE",
     .group = Group::workers,
     .fallback = "default",
     .help = "Name of what these workers do: ROLE_NAME for them, and part of the line prefix.",
     .set = set_text<&RunOptions::role>},
    {.name = "virtual-local-rank",
     .variable = "PET_VIRTUAL_LOCAL_RANK",
     .group = Group::workers,
     .help = "Every worker sees LOCAL_RANK=0 and only its own GPU.",
     .flag = &RunOptions::virtual_local_rank},

    {.name = "hosts",
     .placeholder = "LIST",
     .variable = "LOCKSTEP_HOSTS",
     .group = Group::cluster,
     .origin = Origin::lockstep,
     .help = "Machines on which the job runs, each started from here: a,b:4,c[1-3]. A number after "
             "a colon is how many workers it has where --nproc-per-node is not given.",
     .set = set_hosts<&RunOptions::hosts>},
    {.name = "hostfile",
     .placeholder = "FILE",
     .variable = "LOCKSTEP_HOSTFILE",
     .group = Group::cluster,
     .origin = Origin::lockstep,
     .kind = ValueKind::file,
     .help = "The same from a file, a machine a line: 'n1 slots=4', 'n2 gpus=0,2'.",
     .set = set_path<&RunOptions::hostfile>},
    {.name = "include",
     .placeholder = "HOSTS",
     .group = Group::cluster,
     .origin = Origin::lockstep,
     .help = "Of these machines only: n1@n2:0,2 takes all of n1, and GPUs 0 and 2 of n2.",
     .set = set_hosts<&RunOptions::include>},
    {.name = "exclude",
     .placeholder = "HOSTS",
     .group = Group::cluster,
     .origin = Origin::lockstep,
     .help = "Without these machines, or these of their GPUs: n3@n4:1.",
     .set = set_hosts<&RunOptions::exclude>},
    {.name = "starter",
     .placeholder = "NAME",
     .variable = "LOCKSTEP_STARTER",
     .group = Group::cluster,
     .origin = Origin::lockstep,
     .fallback = "that of the allocation, else ssh",
     .choices = "ssh srun pbsdsh local",
     .help = "What starts the launchers on the machines; local: this machine is all of them.",
     .set = set_starter},
    {.name = "ssh-options",
     .placeholder = "WORDS",
     .variable = "LOCKSTEP_SSH_OPTIONS",
     .group = Group::cluster,
     .origin = Origin::lockstep,
     .help = "More options for ssh, as a shell would read them: '-p 2222 -i key'. With '=': they "
             "begin with a dash.",
     .set = set_text<&RunOptions::ssh_options>},
    {.name = "export",
     .placeholder = "NAMES",
     .variable = "LOCKSTEP_EXPORT",
     .group = Group::cluster,
     .origin = Origin::lockstep,
     .help = "Variables that workers on other machines get beside the usual ones (PATH, PYTHON*, "
             "NCCL_*, CUDA_*, ...): NAME,NAME=VALUE,PREFIX*. ALL: all; NONE: only those after it.",
     .set = set_text<&RunOptions::export_list>},
    {.name = "prologue",
     .placeholder = "COMMANDS",
     .variable = "LOCKSTEP_PROLOGUE",
     .group = Group::cluster,
     .origin = Origin::lockstep,
     .help = "Lines for bash that run on every machine first, such as 'module load cuda'. Workers "
             "get the environment that they leave; the job fails if one of them does.",
     .set = set_text<&RunOptions::prologue>},
    {.name = "remote-lockstep",
     .placeholder = "PATH",
     .variable = "LOCKSTEP_REMOTE_LOCKSTEP",
     .group = Group::cluster,
     .origin = Origin::lockstep,
     .help = "Where this program is on the other machines, if not where it is here.",
     .set = set_path<&RunOptions::remote_lockstep>},

    {.name = "standalone",
     .variable = "PET_STANDALONE",
     .group = Group::meeting,
     .help = "One node that meets nobody: loopback, a free port, a new id. Values of "
             "--rdzv-backend, --rdzv-endpoint and --rdzv-id do not count. This is also what "
             "happens with one node when neither an endpoint nor a port is given.",
     .flag = &RunOptions::standalone},
    {.name = "rdzv-backend",
     .placeholder = "NAME",
     .variable = "PET_RDZV_BACKEND",
     .group = Group::meeting,
     .fallback = "static",
     .choices = "static c10d etcd",
     .help = "How nodes meet. static: all of --nnodes, in the order of --node-rank, at "
             "--master-addr and --master-port. c10d: at --rdzv-endpoint, in any order and number "
             "that --nnodes allows. etcd: the same, and an etcd server at --rdzv-endpoint says "
             "which node hosts, so that the job outlives that node.",
     .set = set_backend},
    {.name = "rdzv-endpoint",
     .placeholder = "HOST[:PORT]",
     .variable = "PET_RDZV_ENDPOINT",
     .group = Group::meeting,
     .help =
         "Where nodes meet. The node that has this address is the host. Without a port it is "
         "29400 under c10d and 29500 under static. Under etcd: its servers, separated by commas; "
         "the port is 2379.",
     .set = set_endpoint},
    {.name = "rdzv-id",
     .placeholder = "ID",
     .variable = "PET_RDZV_ID",
     .group = Group::meeting,
     .fallback = "none",
     .help = "Name of the job, the same on every node.",
     .set = set_rdzv_id},
    {.name = "rdzv-conf",
     .placeholder = "KEY=VALUE,...",
     .variable = "PET_RDZV_CONF",
     .group = Group::meeting,
     .help = "Times in seconds: join_timeout (or timeout) 600, under static 900; last_call_timeout "
             "30; close_timeout 30; heartbeat_timeout 5; keep_alive_interval 5; read_timeout 60. "
             "Also keep_alive_max_attempt 3, is_host (1 or 0: this node hosts, or does not), and "
             "under etcd protocol (http or https), cacert, cert, key, user, password_file and "
             "etcd_prefix (/lockstep).",
     .set = set_rdzv_conf},
    {.name = "node-rank",
     .placeholder = "N",
     .variable = "PET_NODE_RANK",
     .group = Group::meeting,
     .help = "Place of this node among the nodes, from 0; 0 under static when not given. Under "
             "c10d it orders the ranks and need not be given.",
     .set = set_int<&RunOptions::node_rank, 0>},
    {.name = "master-addr",
     .placeholder = "HOST",
     .variable = "PET_MASTER_ADDR",
     .group = Group::meeting,
     .fallback = "127.0.0.1",
     .help = "Address of node 0, for static only. IPv6 as [::1].",
     .set = set_text<&RunOptions::master_addr>},
    {.name = "master-port",
     .placeholder = "PORT",
     .variable = "PET_MASTER_PORT",
     .group = Group::meeting,
     .fallback = "29500",
     .help = "Port on node 0, for static only.",
     .set = set_master_port},
    {.name = "local-addr",
     .placeholder = "ADDRESS",
     .variable = "PET_LOCAL_ADDR",
     .group = Group::meeting,
     .help = "Address under which other nodes reach this one, when the one found by connecting to "
             "the endpoint is not it.",
     .set = set_local_addr},
    {.name = "store",
     .placeholder = "shared|local",
     .variable = "LOCKSTEP_STORE",
     .group = Group::meeting,
     .origin = Origin::lockstep,
     .fallback = "shared",
     .choices = "shared local",
     .help = "Where workers of several nodes find their store: on node 0, open to addresses of "
             "nodes of the job; or on each node's loopback, carried over the nodes' own link.",
     .set = set_store},
    {.name = "network-check",
     .placeholder = "on|off",
     .variable = "LOCKSTEP_NETWORK_CHECK",
     .group = Group::meeting,
     .origin = Origin::lockstep,
     .fallback = "on",
     .choices = "on off",
     .help = "Whether the nodes of a job try, before it begins, over which of their networks they "
             "reach each other. Counts on the coordinator's node.",
     .set = set_network_check},
    {.name = "start-timeout",
     .placeholder = "SECONDS",
     .variable = "LOCKSTEP_START_TIMEOUT",
     .group = Group::meeting,
     .origin = Origin::lockstep,
     .fallback = "60, in Kubernetes 0",
     .help = "How long a node waits where there was never a sign of the coordinator: its name is "
             "not known, there is no way to it, or nothing comes back; and a coordinator for a "
             "second node of the allocation. 0: as long as join_timeout says.",
     .set = set_start_timeout},
    {.name = "secret-file",
     .placeholder = "FILE",
     .variable = "LOCKSTEP_SECRET_FILE",
     .group = Group::meeting,
     .origin = Origin::lockstep,
     .kind = ValueKind::file,
     .help = "File with the secret by which nodes of one job know each other. Nobody but its owner "
             "may be able to read it.",
     .set = set_path<&RunOptions::secret_file>},
    {.name = "insecure",
     .group = Group::meeting,
     .origin = Origin::lockstep,
     .help = "Let several nodes meet without a secret. Whoever reaches the endpoint can join.",
     .flag = &RunOptions::insecure},
    {.name = "tls",
     .variable = "LOCKSTEP_TLS",
     .group = Group::meeting,
     .origin = Origin::lockstep,
     .help =
         "Encrypt the links between nodes, by TLS 1.3 with a key made from the job's secret. On "
         "all nodes or on none. Needs OpenSSL's libssl.",
     .flag = &RunOptions::tls},

    {.name = "module",
     .letter = 'm',
     .variable = "PET_MODULE",
     .group = Group::program,
     .help = "SCRIPT is a Python module, run as by python -m.",
     .flag = &RunOptions::module},
    {.name = "no-python",
     .variable = "PET_NO_PYTHON",
     .group = Group::program,
     .help = "Run SCRIPT itself and not with Python, whatever it looks like.",
     .flag = &RunOptions::no_python},
    {.name = "run-path",
     .variable = "PET_RUN_PATH",
     .group = Group::program,
     .help = "Run SCRIPT with Python's runpy.run_path. Comes before --no-python.",
     .flag = &RunOptions::run_path},
    {.name = "use-env",
     .group = Group::program,
     .origin = Origin::launch,
     .help = "Do not add --local-rank=N to the arguments of SCRIPT; it reads LOCAL_RANK.",
     .flag = &RunOptions::use_env},
    {.name = "start-method",
     .placeholder = "NAME",
     .variable = "PET_START_METHOD",
     .group = Group::program,
     .fallback = "spawn",
     .choices = "spawn fork forkserver",
     .help = "Accepted for torchrun's sake. Workers are always new processes, which is what all "
             "its values come to for programs.",
     .set = set_start_method},

    {.name = "max-restarts",
     .placeholder = "N",
     .variable = "PET_MAX_RESTARTS",
     .group = Group::failures,
     .fallback = "0",
     .help = "How often all workers of the job are started anew after one failed.",
     .set = set_int<&RunOptions::max_restarts, 0>},
    {.name = "recovery",
     .placeholder = "MODE",
     .variable = "LOCKSTEP_RECOVERY",
     .group = Group::failures,
     .origin = Origin::lockstep,
     .fallback = "in-place",
     .choices = "in-place restart",
     .help = "in-place: a worker that a signal ended, or that hangs, is replaced while the others "
             "keep their state, if all workers have said that they can; restart: as torchrun.",
     .set = set_recovery},
    {.name = "max-replacements",
     .placeholder = "N",
     .variable = "LOCKSTEP_MAX_REPLACEMENTS",
     .group = Group::failures,
     .origin = Origin::lockstep,
     .fallback = "100",
     .help = "How many workers may be replaced in place, in the whole job.",
     .set = set_int<&RunOptions::max_replacements, 0>},
    {.name = "min-world",
     .placeholder = "N",
     .variable = "LOCKSTEP_MIN_WORLD",
     .group = Group::failures,
     .origin = Origin::lockstep,
     .help = "A worker that cannot be replaced is left out, and the others go on without it, as "
             "long as N are left. By default all must be there. For recovery in place.",
     .set = set_min_world},
    {.name = "rejoin-after",
     .placeholder = "SECONDS",
     .variable = "LOCKSTEP_REJOIN_AFTER",
     .group = Group::failures,
     .origin = Origin::lockstep,
     .fallback = "30",
     .help = "When a worker that was left out is tried again, within --max-replacements; twice as "
             "long after each time that it fails, up to 16 times.",
     .set = set_rejoin_after},
    {.name = "spares",
     .placeholder = "N",
     .variable = "LOCKSTEP_SPARES",
     .group = Group::failures,
     .origin = Origin::lockstep,
     .fallback = "0",
     .help = "How many processes of the program wait on this node, with everything loaded, to take "
             "the place of a worker that dies. For recovery in place.",
     .set = set_int<&RunOptions::spares, 0>},
    {.name = "hang-timeout",
     .placeholder = "SECONDS",
     .variable = "LOCKSTEP_HANG_TIMEOUT",
     .group = Group::failures,
     .origin = Origin::lockstep,
     .fallback = "60",
     .help =
         "A worker that can be replaced is killed when it gives no sign of life for so long, or "
         "stands still in its step and waits for nobody, for so long and for ten times longer "
         "than ever before; in other phases than a step, ten times as long. 0: none is.",
     .set = set_hang_timeout},
    {.name = "straggler-time",
     .placeholder = "SECONDS",
     .variable = "LOCKSTEP_STRAGGLER_TIME",
     .group = Group::failures,
     .origin = Origin::lockstep,
     .fallback = "30",
     .help = "A worker that all others of its node wait for, because its own part of a step takes "
             "more than 1.5 times as long as theirs, for so long, is named. 0: none is.",
     .set = set_straggler_time},
    {.name = "monitor-interval",
     .placeholder = "SECONDS",
     .variable = "PET_MONITOR_INTERVAL",
     .group = Group::failures,
     .fallback = "0.1",
     .help = "Accepted for torchrun's sake. The end of a worker is noticed at once.",
     .set = set_monitor_interval},
    {.name = "signals-to-handle",
     .placeholder = "NAMES",
     .variable = "PET_SIGNALS_TO_HANDLE",
     .group = Group::failures,
     .fallback = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
     .help = "Signals that stop the job: they are passed on to the workers, which then have the "
             "shutdown time to end.",
     .set = set_signals},
    {.name = "shutdown-timeout",
     .placeholder = "SECONDS",
     .variable = "PET_SHUTDOWN_TIMEOUT",
     .group = Group::failures,
     .fallback = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30",
     .help = "Time that workers have to end after a signal, before they are killed.",
     .set = set_shutdown_timeout},

    {.name = "log-dir",
     .placeholder = "DIR",
     .variable = "PET_LOG_DIR",
     .group = Group::output,
     .kind = ValueKind::directory,
     .help = "Folder for logs in torchrun's layout: DIR/ID_random/attempt_N/LOCAL_RANK/stdout.log, "
             "stderr.log and error.json. /dev/null: no files.",
     .set = set_path<&RunOptions::log_dir>},
    {.name = "redirects",
     .letter = 'r',
     .placeholder = "STREAMS",
     .variable = "PET_REDIRECTS",
     .group = Group::output,
     .fallback = "0",
     .help = "Write output to files instead: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank, "
             "0:3,1:2.",
     .set = set_streams<&RunOptions::redirects>},
    {.name = "tee",
     .letter = 't',
     .placeholder = "STREAMS",
     .variable = "PET_TEE",
     .group = Group::output,
     .fallback = "0",
     .help = "Write output to files and, with a prefix, to the console; values as for --redirects.",
     .set = set_streams<&RunOptions::tee>},
    {.name = "local-ranks-filter",
     .placeholder = "RANKS",
     .variable = "PET_LOCAL_RANKS_FILTER",
     .group = Group::output,
     .help = "Local ranks whose output reaches the console, with commas between. Files are not "
             "affected.",
     .set = set_local_ranks},
    {.name = "duplicate-stdout-filters",
     .placeholder = "WORDS",
     .variable = "PET_DUPLICATE_STDOUT_FILTERS",
     .group = Group::output,
     .help = "Lines of stdout under --tee that contain one of these words, which have commas "
             "between (,, for a comma), also go to filtered_stdout.log.",
     .set = set_filters<&RunOptions::duplicate_stdout_filters>},
    {.name = "duplicate-stderr-filters",
     .placeholder = "WORDS",
     .variable = "PET_DUPLICATE_STDERR_FILTERS",
     .group = Group::output,
     .help = "The same for stderr and filtered_stderr.log.",
     .set = set_filters<&RunOptions::duplicate_stderr_filters>},
    {.name = "logs-specs",
     .placeholder = "NAME",
     .group = Group::output,
     .help = "Not supported: it names a Python class.",
     .set = refuse_logs_specs},
    {.name = "event-log-handler",
     .placeholder = "NAME",
     .variable = "PET_EVENT_LOG_HANDLER",
     .group = Group::output,
     .fallback = "null",
     .choices = "null console dynamic_rendezvous",
     .help = "console: the launcher's events as JSON lines on stderr.",
     .set = set_event_log_handler},
    {.name = "prefix",
     .placeholder = "TEMPLATE",
     .variable = "LOCKSTEP_PREFIX",
     .group = Group::output,
     .origin = Origin::lockstep,
     .help = "Put this before every line that a worker writes to the console, for example "
             "'[${rank} ${host} ${time}] '. Names: rank, local_rank, node_rank, role_name, host, "
             "time, stream, epoch, restart_count.",
     .set = set_text<&RunOptions::prefix>},
    {.name = "log-max-size",
     .placeholder = "SIZE",
     .variable = "LOCKSTEP_LOG_MAX_SIZE",
     .group = Group::output,
     .origin = Origin::lockstep,
     .help = "Start a new log file when one has grown to this many bytes; K, M, G and T stand for "
             "powers of 1024.",
     .set = set_log_max_size},
    {.name = "run-dir",
     .placeholder = "DIR",
     .group = Group::output,
     .origin = Origin::lockstep,
     .kind = ValueKind::directory,
     .help = "Folder of this run: its description, events, logs and metrics.",
     .set = set_path<&RunOptions::run_dir>},
    {.name = "quiet",
     .variable = "LOCKSTEP_QUIET",
     .group = Group::output,
     .origin = Origin::lockstep,
     .help = "Only errors from the launcher itself.",
     .flag = &RunOptions::quiet},
    {.name = "json",
     .group = Group::output,
     .origin = Origin::lockstep,
     .help = "The launcher's events as JSON lines on stdout, for programs.",
     .flag = &RunOptions::json},

    {.name = "numa-binding",
     .placeholder = "MODE",
     .group = Group::machine,
     .choices = "node socket exclusive core-complex",
     .help = "Bind each worker to CPUs near its GPU: all of the NUMA node, all of the socket, a "
             "share of the node's cores, or the cores of one cache.",
     .set = set_numa_binding},

    {.name = "dry-run",
     .group = Group::general,
     .origin = Origin::lockstep,
     .help = "Print ranks, addresses, environment and commands, and start nothing.",
     .flag = &RunOptions::dry_run},
    {.name = "help",
     .letter = 'h',
     .group = Group::general,
     .help = "Print this.",
     .flag = &RunOptions::help},
});

}  // namespace

std::string_view to_string(LaunchCommand command) {
  return command == LaunchCommand::run ? "lockstep run" : "lockstep launch";
}

std::string_view heading(OptionGroup group) {
  switch (group) {
    case Group::workers:
      return "Nodes and workers";
    case Group::cluster:
      return "Machines of a cluster";
    case Group::meeting:
      return "How nodes meet";
    case Group::program:
      return "What is run";
    case Group::failures:
      return "Failures and stopping";
    case Group::output:
      return "Output and logs";
    case Group::machine:
      return "CPUs";
    case Group::general:
      return "Other";
  }
  return "";
}

std::span<const Option> all_options() {
  return kOptions;
}

}  // namespace lockstep
