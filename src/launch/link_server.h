#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launch/link_connection.h"

namespace lockstep {

struct LinkServerOptions {
  std::string secret;  // empty: --insecure, see LinkSessionOptions
  bool tls = false;    // see there
  std::string run_id;
  LinkLimits limits;
  // Who has proven nothing may hold so many connections; then the oldest of the address that has
  // most of them gives way.
  std::size_t max_strangers = 256;
};

/// Accepts links from agents. Connections have numbers that are never used twice.
///
/// A peer that does not have the secret, speaks another protocol or says nothing hurts nobody: it
/// is told why, where it listens, and reported once for its address. Callbacks come from the loop
/// and may call every function, but not destroy the server. The loop must outlive it.
class LinkServer {
 public:
  using Id = std::uint64_t;
  static constexpr std::size_t kMaxReportedAddresses = 16;

  struct Callbacks {
    /// The peer has proven itself. The addresses are numeric, without ports: its, and the one of
    /// ours that it reached.
    std::function<void(Id, const std::string& peer_address, const std::string& local_address)>
        on_open;
    std::function<void(Id, std::string message)> on_message;
    /// After on_open and once; not for connections that close() ended.
    std::function<void(Id, const std::string& reason)> on_close;
    /// Someone was turned away before on_open, or changes what a peer sends. For the log: once
    /// for each address, and once for all those after the first kMaxReportedAddresses. Without an
    /// address, nobody can come in for now.
    std::function<void(const std::string& peer_address, const std::string& reason)> on_refused;
    /// Someone went away before on_open, of its own accord or because it ended. Likewise; may be
    /// unset.
    std::function<void(const std::string& peer_address, const std::string& reason)> on_left = {};
    /// What was queued for a peer and could not be sent at once has gone. May be unset.
    std::function<void(Id)> on_drained = {};
  };

  /// The socket listens already; see launch/listen.h. Throws SystemError if there is a secret
  /// and no OpenSSL, or no libssl of it for `tls`.
  LinkServer(EventLoop& loop, UniqueFd listener, LinkServerOptions options, Callbacks callbacks);
  ~LinkServer();
  LinkServer(const LinkServer&) = delete;
  LinkServer& operator=(const LinkServer&) = delete;

  /// Accepts at another socket, too.
  void also_listen(UniqueFd listener);

  int port() const;

  /// Queues a message. A connection that is gone loses it: on_close has said so or will. Throws
  /// InvalidArgument if it is longer than LinkSession::kMaxMessageBytes.
  void send(Id id, std::string_view message);

  /// Sends what is queued for it, then closes. No callbacks for it any more.
  void close(Id id);

  /// What waits to be taken by the kernel, over all connections, those being closed included. Once
  /// it is 0 the process may end without losing a message.
  std::size_t queued_bytes() const;

  /// The same for one connection.
  std::size_t queued_bytes(Id id) const;

 private:
  void on_connection(int listener);
  void adopt(UniqueFd socket);
  void pause_accepting(int error);
  void on_opened(Id id);
  void on_closed(Id id, const std::string& reason);
  using Report = std::function<void(const std::string&, const std::string&)>;
  void report(std::set<std::string>& reported, const Report& tell, const std::string& address,
              const std::string& reason);
  void remove_stranger(Id id);
  void evict_stranger();

  EventLoop& loop_;
  std::vector<UniqueFd> listeners_;
  LinkServerOptions options_;
  Callbacks callbacks_;
  Id last_id_ = 0;
  std::map<Id, std::shared_ptr<LinkConnection>> strangers_;  // ordered by age
  std::map<std::string, std::size_t> strangers_by_address_;  // how many
  std::map<Id, std::shared_ptr<LinkConnection>> peers_;
  std::vector<std::weak_ptr<LinkConnection>> closing_;
  std::set<std::string> refused_;   // addresses that were turned away
  std::set<std::string> left_;      // addresses that went away
  std::set<std::string> tampered_;  // addresses whose bytes someone changes
  EventLoop::TimerId resume_{};
};

}  // namespace lockstep
