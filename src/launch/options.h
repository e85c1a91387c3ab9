#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep {

/// Which of a worker's streams something applies to. The values are torchrun's.
enum class Streams { none = 0, out = 1, err = 2, both = 3 };

/// Streams per local rank, as --redirects and --tee give them: one value for all, or a map.
struct StreamMap {
  Streams all = Streams::none;  // where the map says nothing
  std::map<int, Streams> by_local_rank;

  Streams of(int local_rank) const {
    const auto found = by_local_rank.find(local_rank);
    return found == by_local_rank.end() ? all : found->second;
  }
  bool operator==(const StreamMap&) const = default;
};

/// What follows when a worker dies that could be replaced alone.
enum class RecoveryMode {
  in_place,  // the others keep their state, a new worker takes its place
  restart,   // as for torchrun: all or nothing
};

enum class NumaBinding { node, socket, exclusive, core_complex };

/// Where the store of a job on several nodes listens.
enum class StoreMode {
  shared,  // on node 0's address, for addresses of nodes that joined
  local,   // on every node's loopback, forwarded over the authenticated link
};

/// What --rdzv-conf can change. The names are torchrun's.
struct RendezvousConfig {
  std::chrono::milliseconds join_timeout = std::chrono::seconds(600);  // until min_nodes are there
  std::chrono::milliseconds last_call_timeout = std::chrono::seconds(30);  // then, for more of them
  std::chrono::milliseconds close_timeout = std::chrono::seconds(30);
  std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(5);
  std::chrono::milliseconds keep_alive_interval = std::chrono::seconds(5);
  int keep_alive_max_attempt = 3;  // this many heartbeats missed in a row: the node is lost
  std::chrono::milliseconds read_timeout = std::chrono::seconds(60);  // for an answer of the host
  std::string etcd_prefix = "/lockstep";                              // of the keys in etcd
};

/// What a user asked `lockstep run` for, after the command line, PET_* variables and defaults have
/// been put together. Names and meanings are torchrun's, up to "ours".
struct RunOptions {
  int min_nodes = 1;  // equal to max_nodes under the static backend
  int max_nodes = 1;
  std::string nproc_per_node = "1";     // a number, or cpu, gpu, auto
  std::string rdzv_backend = "static";  // static, etcd, or c10d, as for standalone
  std::string rdzv_endpoint;
  std::string rdzv_id = "none";
  std::map<std::string, std::string> rdzv_conf;
  bool standalone = false;  // also set where one node was given nowhere to meet
  int max_restarts = 0;
  std::chrono::duration<double> monitor_interval{0.1};
  std::string start_method = "spawn";
  std::string event_log_handler = "null";
  std::string role = "default";
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  std::optional<std::string> log_dir;
  StreamMap redirects;
  StreamMap tee;
  std::optional<std::set<int>> local_ranks_filter;  // unset: all
  std::vector<std::string> duplicate_stdout_filters;
  std::vector<std::string> duplicate_stderr_filters;
  std::optional<int> node_rank;
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;
  std::optional<std::string> local_addr;
  std::optional<std::string> logs_specs;
  std::optional<NumaBinding> numa_binding;
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  std::vector<int> stop_signals;                         // the numbers of the above
  std::optional<std::chrono::seconds> shutdown_timeout;  // set after parsing, from here or there
  bool virtual_local_rank = false;
  bool use_env = true;  // `lockstep launch` without --use-env: false

  // Ours.
  bool quiet = false;
  bool json = false;  // events as JSON lines on standard output
  bool dry_run = false;
  std::optional<std::string> run_dir;
  std::optional<std::string> secret_file;
  bool insecure = false;
  bool tls = false;  // links between nodes are encrypted
  StoreMode store = StoreMode::shared;
  bool network_check = true;                                           // on the coordinator's node
  std::chrono::milliseconds start_timeout = std::chrono::seconds(60);  // 0: as join_timeout
  RecoveryMode recovery = RecoveryMode::in_place;
  int max_replacements = 100;
  std::optional<int> min_world;  // workers that may go on without the others; unset: all or nothing
  std::chrono::milliseconds rejoin_after = std::chrono::seconds(30);
  int spares = 0;                                                       // on this node
  std::chrono::milliseconds hang_timeout = std::chrono::seconds(60);    // 0: none
  std::chrono::milliseconds straggler_time = std::chrono::seconds(30);  // 0: none
  std::optional<std::string> prefix;            // template of every console line of a worker
  std::optional<std::string> tee_prefix;        // TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE: tee only
  std::optional<std::uintmax_t> log_max_bytes;  // rotate a log file beyond this

  // Where the nodes come from, and how they are reached (docs/clusters.md).
  bool nodes_auto = false;  // --nnodes auto: what the scheduler says
  std::optional<std::string> hosts;
  std::optional<std::string> hostfile;
  std::optional<std::string> include;
  std::optional<std::string> exclude;
  std::optional<std::string> starter;  // unset: by the scheduler, else ssh
  std::string ssh_options;
  std::string export_list;  // names of variables, beside the usual ones
  std::optional<std::string> prologue;
  std::optional<std::string> remote_lockstep;  // unset: where this one is

  bool headed = false;  // the coordinator is in a process of its own, which has no workers

  // What the above come to together.
  RendezvousConfig rendezvous;
  std::set<std::string> given;       // long names that the command line or a variable gave
  std::vector<std::string> notices;  // one line each, for the user to read before the job starts
  bool help = false;                 // nothing but this is set then

  std::string script;
  std::vector<std::string> script_arguments;

  /// Whether nobody outside of this process belongs to the job.
  bool one_node() const { return max_nodes == 1 && !headed; }
  /// Whether the nodes are to be found out: how many, and where they meet, is not settled then.
  bool seeks_nodes() const { return nodes_auto || hosts || hostfile; }
};

}  // namespace lockstep
