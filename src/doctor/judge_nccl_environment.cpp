#include <algorithm>

#include "doctor/accelerator_facts.h"
#include "launch/option_values.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::string names_of(const NetworkFacts& network) {
  std::string text;
  for (const InterfaceFacts& each : network.interfaces) {
    text += concat(text.empty() ? "" : ", ", each.name);
  }
  return text;
}

bool on(const Environment& environment, const char* name) {
  const auto value = environment.get(name);
  return value && !value->empty() && *value != "0";
}

// "eth,ib" are beginnings of names; "=eth0" is a whole one; "^docker" is what not to use.
bool nccl_names_interface(std::string_view list, const NetworkFacts& network) {
  if (list.starts_with("^")) return true;
  const bool exact = list.starts_with("=");
  if (exact) list.remove_prefix(1);
  for (const std::string_view name : split(list, ',')) {
    const bool known = std::ranges::any_of(network.interfaces, [&](const InterfaceFacts& each) {
      return exact ? each.name == name : each.name.starts_with(name);
    });
    if (known && !name.empty()) return true;
  }
  return false;
}

void judge_interface_names(const Environment& environment, const NetworkFacts& network,
                           bool several_nodes, FindingList& list) {
  const std::string cure =
      "name one of this node's interfaces, or leave it out: lockstep run sets it on each node";
  if (const auto names = environment.get("NCCL_SOCKET_IFNAME"); names && !names->empty()) {
    if (!nccl_names_interface(*names, network)) {
      list.error("nccl variables",
                 concat("NCCL_SOCKET_IFNAME is '", *names,
                        "', and this node has no such interface; it has ", names_of(network)),
                 cure);
    } else if (several_nodes && (*names == "lo" || *names == "=lo")) {
      list.error("nccl variables",
                 "NCCL_SOCKET_IFNAME is 'lo': ranks of other nodes cannot be reached there", cure);
    }
  }
  const std::string gloo = environment.get("GLOO_SOCKET_IFNAME").value_or("");
  for (const std::string_view name : split(gloo, ',')) {
    if (name.empty()) continue;
    if (network.interface(std::string(name)) == nullptr) {
      list.error("nccl variables",
                 concat("GLOO_SOCKET_IFNAME names '", name,
                        "', and this node has no such interface; it has ", names_of(network)),
                 cure);
    } else if (several_nodes && name == "lo") {
      list.error("nccl variables",
                 "GLOO_SOCKET_IFNAME is 'lo': ranks of other nodes cannot be reached there", cure);
    }
  }
}

void judge_rdma_variables(const Environment& environment, const NetworkFacts& network,
                          FindingList& list) {
  if (on(environment, "NCCL_IB_DISABLE") && network.has_active_rdma()) {
    list.warning("nccl variables",
                 "NCCL_IB_DISABLE is set, and this node has an active InfiniBand or RoCE port that "
                 "NCCL will not use",
                 "unset NCCL_IB_DISABLE");
  }
  std::string wanted = environment.get("NCCL_IB_HCA").value_or("");
  if (wanted.empty() || wanted.starts_with("^")) return;
  const bool exact = wanted.starts_with("=");
  if (exact) wanted.erase(0, 1);
  for (const std::string_view word : split(wanted, ',')) {
    const std::string_view name = word.substr(0, word.find(':'));  // "mlx5_0:1" has a port
    const bool known = std::ranges::any_of(network.rdma_ports, [&](const RdmaPort& port) {
      return exact ? port.device == name : port.device.starts_with(name);
    });
    if (!known) {
      list.error("nccl variables",
                 concat("NCCL_IB_HCA names '", name, "', and this node has no such device"),
                 "correct it by what `ls /sys/class/infiniband` shows, or leave it out");
    }
  }
}

void judge_plugin(const Environment& environment, const AcceleratorFacts& facts,
                  FindingList& list) {
  if (facts.gpus == 0 || !facts.plugin_library.empty()) return;
  const bool named = environment.get("NCCL_NET_PLUGIN").value_or("") != "" &&
                     environment.get("NCCL_NET_PLUGIN") != "none";
  if (const auto provider = environment.get("FI_PROVIDER"); provider && !provider->empty()) {
    list.error(
        "nccl variables",
        concat("FI_PROVIDER is '", *provider,
               "', but NCCL finds no plugin for libfabric: it will use sockets (",
               facts.wanted_plugin.empty() ? "NCCL_NET_PLUGIN is none" : facts.plugin_problem, ")"),
        "install aws-ofi-nccl and add its lib folder to LD_LIBRARY_PATH");
  } else if (named) {
    list.error("nccl variables",
               concat("NCCL_NET_PLUGIN asks for ", facts.wanted_plugin,
                      ", which cannot be loaded: ", facts.plugin_problem),
               "add its folder to LD_LIBRARY_PATH, or unset NCCL_NET_PLUGIN");
  }
}

}  // namespace

void judge_nccl_environment(const Environment& environment, const AcceleratorFacts& facts,
                            const NetworkFacts& network, bool several_nodes, FindingList& list) {
  judge_interface_names(environment, network, several_nodes, list);
  judge_rdma_variables(environment, network, list);
  judge_plugin(environment, facts, list);
  for (const char* name : {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"}) {
    if (on(environment, name)) {
      list.warning("nccl variables",
                   concat(name, " is set: GPUs of one machine talk to each other the slow way"),
                   concat("unset ", name, " unless it works around a known fault"));
    }
  }
  for (const char* name : {"NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT"}) {
    if (environment.has(name)) {
      list.note("nccl variables", concat(name, " is an old name, which newer torch warns of"),
                concat("TORCH_", name));
    }
  }
}

}  // namespace lockstep
