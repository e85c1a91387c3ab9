#include "comm/gloo.h"

#include <signal.h>

#include <cstdlib>
#include <sstream>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>

namespace lockstep {
namespace {

using c10d::ProcessGroupGloo;

// GLOO_SOCKET_IFNAME may name several interfaces, separated by commas, as in Python.
std::vector<std::shared_ptr<gloo::transport::Device>> make_devices(bool one_machine) {
  if (const char* names = std::getenv("GLOO_SOCKET_IFNAME"); names && *names) {
    std::vector<std::shared_ptr<gloo::transport::Device>> devices;
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');) {
      devices.push_back(ProcessGroupGloo::createDeviceForInterface(name, /*lazyInit=*/false));
    }
    return devices;
  }
  if (one_machine) {
    return {ProcessGroupGloo::createDeviceForHostname("127.0.0.1", /*lazyInit=*/false)};
  }
  return {ProcessGroupGloo::createDefaultDevice(/*lazyInit=*/false)};
}

c10::intrusive_ptr<ProcessGroupGloo::Options> gloo_options(const GlooOptions& options) {
  auto result = ProcessGroupGloo::Options::create(options.rendezvous_timeout);
  result->devices = make_devices(options.one_machine);
  // As many as Python has, because the number decides on which connection an operation travels.
  result->threads = static_cast<int>(result->devices.size()) * 2;
  result->group_name = options.group_name;
  result->global_ranks_in_group.assign(options.global_ranks.begin(), options.global_ranks.end());
  return result;
}

// Gloo writes to connections whose other end may be gone; the default answer to that is a signal
// which ends the program. A program that handles the signal by itself keeps its handler. (Python
// ignores the signal from the start.)
void ignore_broken_pipes() {
  struct sigaction current {};
  if (sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace

GlooBackend make_gloo(const c10::intrusive_ptr<c10d::Store>& store, const GlooOptions& options) {
  ignore_broken_pipes();
  const auto before = SocketHandles::Snapshot::take();

  auto gloo = c10::make_intrusive<ProcessGroupGloo>(store, options.rank, options.size,
                                                    gloo_options(options));
  gloo->setTimeout(options.timeout);
  gloo->setSequenceNumberForGroup();
  GlooBackend result{.backend = gloo, .bare = gloo, .sockets = nullptr};

  if (c10d::debug_level() == c10d::DebugLevel::Detail) {
    // The names are Python's, so that ranks of both languages check each other.
    auto helper_store =
        c10::make_intrusive<c10d::PrefixStore>("pg_wrapper:" + options.group_name, store);
    auto helper = c10::make_intrusive<ProcessGroupGloo>(helper_store, options.rank, options.size,
                                                        gloo_options(options));
    helper->setTimeout(options.timeout);
    result.backend = c10::make_intrusive<c10d::ProcessGroupWrapper>(gloo, helper);
  }
  result.sockets =
      std::make_shared<SocketHandles>(SocketHandles::opened_since(before, options.store_port));
  return result;
}

}  // namespace lockstep
