#pragma once

#include "launch/option_table.h"
#include "launch/option_values.h"

namespace lockstep {

// How the values of options get into PendingOptions, for the table alone. All throw InvalidArgument
// for a value that breaks the option's rule.

template <auto member>
void set_text(PendingOptions& pending, const OptionValue& value) {
  pending.options.*member = value.text;
}

template <auto member, int minimum>
void set_int(PendingOptions& pending, const OptionValue& value) {
  pending.options.*member = parse_int_at_least(value, minimum);
}

template <auto member>
void set_streams(PendingOptions& pending, const OptionValue& value) {
  pending.options.*member = parse_streams(value);
}

template <auto member>
void set_filters(PendingOptions& pending, const OptionValue& value) {
  pending.options.*member = split_filters(value.text);
}

template <auto member>
void set_path(PendingOptions& pending, const OptionValue& value) {
  if (value.text.empty()) {
    reject(value, "it must be a path");
  }
  pending.options.*member = value.text;
}

/// A list of machines; what is in it is looked at later.
template <auto member>
void set_hosts(PendingOptions& pending, const OptionValue& value) {
  if (trim(value.text).empty()) {
    reject(value, "it must name a machine");
  }
  pending.options.*member = trim(value.text);
}

void set_nodes(PendingOptions& pending, const OptionValue& value);
void set_processes(PendingOptions& pending, const OptionValue& value);
void set_backend(PendingOptions& pending, const OptionValue& value);
void set_endpoint(PendingOptions& pending, const OptionValue& value);
void set_rdzv_id(PendingOptions& pending, const OptionValue& value);
void set_rdzv_conf(PendingOptions& pending, const OptionValue& value);
void set_monitor_interval(PendingOptions& pending, const OptionValue& value);
void set_start_method(PendingOptions& pending, const OptionValue& value);
void set_event_log_handler(PendingOptions& pending, const OptionValue& value);
void set_local_ranks(PendingOptions& pending, const OptionValue& value);
void set_master_port(PendingOptions& pending, const OptionValue& value);
void set_local_addr(PendingOptions& pending, const OptionValue& value);
void refuse_logs_specs(PendingOptions& pending, const OptionValue& value);
void set_numa_binding(PendingOptions& pending, const OptionValue& value);
void set_signals(PendingOptions& pending, const OptionValue& value);
void set_shutdown_timeout(PendingOptions& pending, const OptionValue& value);
void set_starter(PendingOptions& pending, const OptionValue& value);
void set_store(PendingOptions& pending, const OptionValue& value);
void set_network_check(PendingOptions& pending, const OptionValue& value);
void set_recovery(PendingOptions& pending, const OptionValue& value);
void set_min_world(PendingOptions& pending, const OptionValue& value);
void set_rejoin_after(PendingOptions& pending, const OptionValue& value);
void set_start_timeout(PendingOptions& pending, const OptionValue& value);
void set_hang_timeout(PendingOptions& pending, const OptionValue& value);
void set_straggler_time(PendingOptions& pending, const OptionValue& value);
void set_log_max_size(PendingOptions& pending, const OptionValue& value);

}  // namespace lockstep
