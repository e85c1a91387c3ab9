#pragma once

#include <atomic>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "core/unique_fd.h"
#include "doctor/messages.h"
#include "doctor/network_facts.h"

namespace lockstep {

/// Answers the probes of other nodes at each of this machine's addresses, at ports that the kernel
/// chose, as it does for Gloo's and NCCL's own. Who does not have the secret gets nothing, holds a
/// place for five seconds at most, and there are sixteen.
class ProbeServer {
 public:
  struct Options {
    std::string secret;  // empty: --insecure
    bool tls = false;
    std::string id;  // this node's
  };

  /// An address that cannot be listened at is left out.
  ProbeServer(const std::vector<InterfaceAddress>& addresses, Options options);
  /// Ends what is being said.
  ~ProbeServer();
  ProbeServer(const ProbeServer&) = delete;
  ProbeServer& operator=(const ProbeServer&) = delete;

  const std::vector<ProbeListener>& listeners() const { return listeners_; }

 private:
  // One connection's, until it is over and its thread was joined.
  struct Conversation {
    UniqueFd socket;  // to end it by; the session has one of its own
    std::atomic<bool> is_over = false;
    std::thread thread;
  };

  void serve();
  void begin(UniqueFd socket);
  void answer(Conversation& conversation, UniqueFd socket) const;

  const Options options_;
  std::vector<ProbeListener> listeners_;
  std::vector<UniqueFd> sockets_;
  UniqueFd stop_;
  std::list<Conversation> conversations_;  // of the serving thread
  std::thread thread_;
};

/// The most that one request may send at once.
inline constexpr std::size_t kMostProbeBytes = std::size_t{256} << 20;

}  // namespace lockstep
