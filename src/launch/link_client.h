#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "launch/endpoint.h"
#include "launch/link_connection.h"
#include "launch/reach.h"

namespace lockstep {

struct LinkClientOptions {
  Endpoint server;     // a name is looked up in a thread of its own
  std::string secret;  // empty: --insecure, see LinkSessionOptions
  bool tls = false;    // see there
  std::string run_id;
  std::chrono::milliseconds connect_timeout{5000};  // over all addresses of a name
  LinkLimits limits;
  // Why it failed is said for people, with what to do about the coordinator's endpoint; otherwise
  // only why.
  bool advises = true;
};

/// One attempt to reach a LinkServer, and the link if it succeeds. To try again, make another.
///
/// Callbacks come from the loop, never from the constructor or another function, and may destroy
/// the client. The loop must outlive it.
class LinkClient {
 public:
  struct Callbacks {
    /// Both ends have proven themselves. Numeric addresses without ports: the server's, and the one
    /// of ours from which it is reached.
    std::function<void(const std::string& peer_address, const std::string& local_address)> on_open;
    std::function<void(std::string message)> on_message;
    /// Once, and the last: the attempt failed or the link broke.
    std::function<void(const std::string& reason)> on_close;
    /// What was queued and could not be sent at once has gone. May be unset.
    std::function<void()> on_drained = {};
  };

  /// Throws SystemError if there is a secret and no OpenSSL.
  LinkClient(EventLoop& loop, LinkClientOptions options, Callbacks callbacks);
  ~LinkClient();
  LinkClient(const LinkClient&) = delete;
  LinkClient& operator=(const LinkClient&) = delete;

  /// Whether messages can be sent: since on_open, until on_close or close().
  bool open() const;

  /// How far it has come. Also while on_close is called.
  Reach reach() const;

  /// Queues a message; it is lost if the link is not open. Throws InvalidArgument if it is longer
  /// than LinkSession::kMaxMessageBytes.
  void send(std::string_view message);

  /// Sends what is queued, then closes. No callbacks any more.
  void close();

  /// What waits to be taken by the kernel.
  std::size_t queued_bytes() const;

 private:
  class Attempt;
  std::shared_ptr<Attempt> attempt_;  // outlives this object while a callback runs
};

}  // namespace lockstep
