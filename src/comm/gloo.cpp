#include "comm/gloo.h"

#include <signal.h>

#include <cstdlib>
#include <functional>
#include <sstream>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>

#include "comm/message_watch.h"
#include "comm/messages.h"

namespace lockstep {
namespace {

using c10d::ProcessGroupGloo;

/// A message of Gloo's that is watched while someone waits for it.
class WatchedWork : public c10d::Work {
 public:
  using Wait = std::function<bool(c10d::Work&, std::chrono::milliseconds)>;

  WatchedWork(c10::intrusive_ptr<c10d::Work> inner, int rank, Wait wait)
      : Work(rank, inner->retrieveOpType()), inner_(std::move(inner)), wait_(std::move(wait)) {}

  bool wait(std::chrono::milliseconds timeout) override { return wait_(*inner_, timeout); }
  void abort() override { inner_->abort(); }
  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

 private:
  c10::intrusive_ptr<c10d::Work> inner_;
  Wait wait_;
};

/// Gloo, with messages that end when their connection does, and at the group's time-out, which Gloo
/// by itself takes for collectives alone.
class WatchedGloo : public ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // Who waits may hold the watch longer than this lives.
  ~WatchedGloo() override {
    if (watch_) watch_->stop();
  }

  void watch(std::shared_ptr<const SocketHandles> sockets) {
    watch_ = std::make_shared<MessageWatch>(std::move(sockets),
                                            [this](int connection) { return is_lost(connection); });
  }

  WorkPtr send(std::vector<at::Tensor>& tensors, int peer, int tag) override {
    return watched(ProcessGroupGloo::send(tensors, peer, tag), peer, tag);
  }

  WorkPtr recv(std::vector<at::Tensor>& tensors, int peer, int tag) override {
    return watched(ProcessGroupGloo::recv(tensors, peer, tag), peer, tag);
  }

 private:
  // Tags decide on which of several interfaces a message travels.
  int interfaces() const { return static_cast<int>(options_->devices.size()); }

  WorkPtr watched(WorkPtr work, int peer, int tag) {
    const auto wait = [watch = std::weak_ptr(watch_), options = options_,
                       connection = peer * interfaces() + tag % interfaces()](
                          c10d::Work& inner, std::chrono::milliseconds timeout) {
      if (timeout == kNoTimeout) timeout = options->timeout;
      const auto watching = watch.lock();
      return watching ? watching->wait(inner, connection, timeout) : inner.wait(timeout);
    };
    return c10::make_intrusive<WatchedWork>(std::move(work), getRank(), wait);
  }

  // A pair that has failed refuses what is sent next; one that has not keeps an empty message,
  // which nobody receives.
  bool is_lost(int connection) {
    const int interface = connection % interfaces();
    const int tag =
        kFirstProbeTag + (interface - kFirstProbeTag % interfaces() + interfaces()) % interfaces();
    std::vector<at::Tensor> nothing{at::empty({0}, at::kByte)};
    try {
      ProcessGroupGloo::send(nothing, connection / interfaces(), tag);
    } catch (const std::exception&) {
      return true;
    }
    return false;
  }

  std::shared_ptr<MessageWatch> watch_;
};

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

  auto gloo =
      c10::make_intrusive<WatchedGloo>(store, options.rank, options.size, gloo_options(options));
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
  gloo->watch(result.sockets);
  return result;
}

}  // namespace lockstep
