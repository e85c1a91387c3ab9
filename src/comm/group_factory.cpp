#include "comm/group_factory.h"

#include <map>
#include <sstream>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/gloo.h"
#include "comm/guarded_backend.h"
#include "comm/mpi.h"
#include "comm/nccl.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using BackendType = c10d::ProcessGroup::BackendType;

// What attach_team() makes of it is one of the first two, or Gloo.
bool works_in_memory(const std::string& name) {
  return name == "shm" || name == "hybrid" || name == "auto";
}

// "gloo" serves both kinds of devices with one backend; "cpu:gloo,cuda:nccl" names one for each.
std::map<std::string, std::string> parse_backend(const std::string& text) {
  if (text == "gloo") return {{"cpu", "gloo"}, {"cuda", "gloo"}};
  if (works_in_memory(text)) return {{"cpu", text}, {"cuda", "gloo"}};
  if (text == "mpi") return {{"cpu", "mpi"}};
  if (text == "nccl") return {{"cuda", "nccl"}};
  std::map<std::string, std::string> by_device;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto colon = part.find(':');
    const std::string device = part.substr(0, colon);
    const std::string name = colon == std::string::npos ? "" : part.substr(colon + 1);
    const bool known = (device == "cpu" && (name == "gloo" || works_in_memory(name))) ||
                       (device == "cuda" && (name == "gloo" || name == "nccl"));
    if (!known) {
      throw InvalidArgument(
          concat("backend is '", text,
                 "'; it must be auto, gloo, shm, hybrid, mpi, nccl, or one for each device, like "
                 "cpu:gloo,cuda:nccl"));
    }
    by_device[device] = name;
  }
  return by_device;
}

c10::DeviceType device_type(const std::string& name) {
  return name == "cpu" ? c10::DeviceType::CPU : c10::DeviceType::CUDA;
}

}  // namespace

bool has_backend(const std::string& name) {
  return name == "gloo" || name == "mpi" || works_in_memory(name) ||
         (name == "nccl" && built_with_nccl());
}

std::shared_ptr<GroupImpl> make_group(const GroupSpec& spec) {
  const int size = static_cast<int>(spec.global_ranks.size());
  auto impl = std::make_shared<GroupImpl>();
  impl->name = spec.name;
  impl->backend = spec.backend;
  impl->rank = spec.rank;
  impl->global_ranks = spec.global_ranks;
  impl->timeout = spec.timeout;
  impl->store = spec.own_store;
  impl->peers = spec.peers;
  impl->guard = std::make_shared<GroupGuard>(GroupGuard::Options{.rank = spec.rank,
                                                                 .group_name = spec.name,
                                                                 .global_ranks = spec.global_ranks,
                                                                 .peers = spec.peers,
                                                                 .meter = spec.meter});
  impl->shm = std::make_shared<ShmChannel>();
  impl->group = c10::make_intrusive<c10d::ProcessGroup>(spec.backend_store, spec.rank, size);

  const auto by_device = parse_backend(spec.backend);
  c10::intrusive_ptr<c10d::Backend> gloo, nccl;
  if (spec.backend == "mpi") {  // it takes the place of Gloo in all that follows
    impl->gloo = make_mpi({.rank = spec.rank,
                           .group_name = spec.name,
                           .global_ranks = spec.global_ranks,
                           .timeout = spec.timeout});
    gloo = c10::make_intrusive<GuardedBackend>(impl->gloo, impl->guard);
  }
  for (const auto& [device, name] : by_device) {
    auto store = c10::make_intrusive<c10d::PrefixStore>(device + "/", spec.backend_store);
    // Behind shm, Gloo carries messages, and all when the ranks cannot share memory (attach_team).
    if (name != "nccl" && !gloo) {
      const auto made = make_gloo(store, {.rank = spec.rank,
                                          .size = size,
                                          .group_name = spec.name,
                                          .global_ranks = spec.global_ranks,
                                          .timeout = spec.timeout,
                                          .rendezvous_timeout = spec.rendezvous_timeout,
                                          .one_machine = spec.one_machine,
                                          .store_port = spec.store_port});
      gloo = c10::make_intrusive<GuardedBackend>(made.backend, impl->guard);
      impl->gloo = made.bare;
      impl->sockets = made.sockets;
    } else if (name == "nccl") {
      nccl = make_nccl(store, {.rank = spec.rank,
                               .size = size,
                               .group_name = spec.name,
                               .global_ranks = spec.global_ranks,
                               .timeout = spec.timeout});
    }
  }

  const auto host_type = spec.backend == "mpi" ? BackendType::MPI : BackendType::GLOO;
  impl->group->setDefaultBackend(nccl ? BackendType::NCCL : host_type);
  auto guarded_nccl = nccl ? c10::make_intrusive<GuardedBackend>(nccl, impl->guard) : nullptr;
  for (const auto& [device, name] : by_device) {
    if (name != "nccl") {
      impl->group->setBackend(device_type(device), host_type, gloo);
    } else {
      impl->group->setBackend(device_type(device), BackendType::NCCL, guarded_nccl);
    }
  }
  impl->group->setGroupName(spec.name);
  impl->group->setGroupDesc(spec.name == "0" ? "default_pg" : "undefined");

  impl->nccl = nccl;
  // Its operations are waited for on the device, where nobody can tell waiting from work.
  if (nccl && size > 1) impl->guard->wait_began("nccl");
  const auto mpi = spec.backend == "mpi" ? impl->gloo : nullptr;
  impl->guard->set_close([sockets = impl->sockets, shm = impl->shm, nccl, mpi] {
    if (mpi) mpi->abort();
    shm->poison();
    if (sockets) sockets->shut_down();
    if (nccl) nccl->abort();
  });
  return impl;
}

}  // namespace lockstep
