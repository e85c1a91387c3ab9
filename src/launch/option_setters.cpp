#include "launch/option_setters.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "launch/rendezvous_config.h"

namespace lockstep {

void set_nodes(PendingOptions& pending, const OptionValue& value) {
  pending.options.nodes_auto = value.text == "auto";
  if (pending.options.nodes_auto) return;
  std::tie(pending.options.min_nodes, pending.options.max_nodes) = parse_nodes(value);
}

void set_processes(PendingOptions& pending, const OptionValue& value) {
  pending.options.nproc_per_node = parse_processes(value);
}

void set_backend(PendingOptions& pending, const OptionValue& value) {
  // torchrun's two differ in how they use etcd, which here is a third way.
  const std::string name = value.text == "etcd-v2" ? "etcd" : value.text;
  if (name != "static" && name != "c10d" && name != "etcd") {
    reject(value,
           "it must be static, c10d or etcd; backends from Python plugins are not supported");
  }
  pending.options.rdzv_backend = name;
}

void set_endpoint(PendingOptions& pending, const OptionValue& value) {
  pending.options.rdzv_endpoint = trim(value.text);
  pending.rdzv_endpoint = value;
}

void set_rdzv_id(PendingOptions& pending, const OptionValue& value) {
  if (value.text.find('/') != std::string::npos) {
    reject(value, "it must not contain '/', because the folder of the logs is named after it");
  }
  pending.options.rdzv_id = value.text;
}

void set_rdzv_conf(PendingOptions& pending, const OptionValue& value) {
  pending.options.rdzv_conf = split_rendezvous_conf(value);
  pending.rdzv_conf = value;
}

void set_monitor_interval(PendingOptions& pending, const OptionValue& value) {
  pending.options.monitor_interval = parse_positive_seconds(value);
}

void set_start_method(PendingOptions& pending, const OptionValue& value) {
  if (value.text != "spawn" && value.text != "fork" && value.text != "forkserver") {
    reject(value, "it must be spawn, fork or forkserver");
  }
  pending.options.start_method = value.text;
}

void set_event_log_handler(PendingOptions& pending, const OptionValue& value) {
  if (value.text != "null" && value.text != "console" && value.text != "dynamic_rendezvous") {
    reject(
        value,
        "it must be null, console or dynamic_rendezvous; handlers from Python are not supported");
  }
  pending.options.event_log_handler = value.text;
}

void set_local_ranks(PendingOptions& pending, const OptionValue& value) {
  pending.options.local_ranks_filter = parse_local_ranks(value);
}

void set_master_port(PendingOptions& pending, const OptionValue& value) {
  pending.options.master_port = parse_port(value);
}

void set_local_addr(PendingOptions& pending, const OptionValue& value) {
  if (trim(value.text).empty()) {
    reject(value, "it must be an address of this node");
  }
  pending.options.local_addr = trim(value.text);
}

void refuse_logs_specs(PendingOptions&, const OptionValue& value) {
  reject(value,
         "plugins for logs are Python classes and not supported; use --log-dir, --redirects,"
         " --tee and --prefix");
}

void set_numa_binding(PendingOptions& pending, const OptionValue& value) {
  constexpr std::array<std::pair<std::string_view, NumaBinding>, 4> kBindings{
      {{"node", NumaBinding::node},
       {"socket", NumaBinding::socket},
       {"exclusive", NumaBinding::exclusive},
       {"core-complex", NumaBinding::core_complex}}};
  const auto found =
      std::ranges::find_if(kBindings, [&](const auto& known) { return known.first == value.text; });
  if (found == kBindings.end()) {
    reject(value, "it must be node, socket, exclusive or core-complex");
  }
  pending.options.numa_binding = found->second;
}

void set_signals(PendingOptions& pending, const OptionValue& value) {
  pending.options.stop_signals = parse_signals(value);
  pending.options.signals_to_handle = value.text;
}

void set_shutdown_timeout(PendingOptions& pending, const OptionValue& value) {
  pending.options.shutdown_timeout = std::chrono::seconds(parse_int_at_least(value, 0));
}

void set_starter(PendingOptions& pending, const OptionValue& value) {
  constexpr std::array<std::string_view, 4> kStarters{"ssh", "srun", "pbsdsh", "local"};
  if (std::ranges::find(kStarters, value.text) == kStarters.end()) {
    reject(value, "it must be ssh, srun, pbsdsh or local");
  }
  pending.options.starter = value.text;
}

void set_network_check(PendingOptions& pending, const OptionValue& value) {
  if (value.text != "on" && value.text != "off") reject(value, "it must be on or off");
  pending.options.network_check = value.text == "on";
}

void set_store(PendingOptions& pending, const OptionValue& value) {
  if (value.text != "shared" && value.text != "local") {
    reject(value, "it must be shared or local");
  }
  pending.options.store = value.text == "local" ? StoreMode::local : StoreMode::shared;
}

void set_recovery(PendingOptions& pending, const OptionValue& value) {
  if (value.text != "in-place" && value.text != "restart") {
    reject(value, "it must be in-place or restart");
  }
  pending.options.recovery =
      value.text == "in-place" ? RecoveryMode::in_place : RecoveryMode::restart;
}

void set_min_world(PendingOptions& pending, const OptionValue& value) {
  pending.options.min_world = parse_int_at_least(value, 1);
}

void set_rejoin_after(PendingOptions& pending, const OptionValue& value) {
  pending.options.rejoin_after = std::chrono::seconds(parse_int_at_least(value, 1));
}

void set_hang_timeout(PendingOptions& pending, const OptionValue& value) {
  pending.options.hang_timeout = std::chrono::seconds(parse_int_at_least(value, 0));
}

void set_start_timeout(PendingOptions& pending, const OptionValue& value) {
  pending.options.start_timeout = std::chrono::seconds(parse_int_at_least(value, 0));
}

void set_straggler_time(PendingOptions& pending, const OptionValue& value) {
  pending.options.straggler_time = std::chrono::seconds(parse_int_at_least(value, 0));
}

void set_log_max_size(PendingOptions& pending, const OptionValue& value) {
  pending.options.log_max_bytes = parse_size(value);
}

}  // namespace lockstep
