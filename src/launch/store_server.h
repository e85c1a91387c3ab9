#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/unique_fd.h"
#include "launch/store_status.h"

namespace lockstep {

struct StoreServerOptions {
  UniqueFd listener;  // from listen_on(): bound and listening

  /// Takes a line about connections that were closed. Runs on the store's thread: it must not block
  /// and must not call the server.
  std::function<void(std::string)> log;

  /// Of all keys, values and buffers. A connection that would go beyond is closed.
  std::size_t max_bytes = std::size_t{1} << 30;
};

/// The store in which the ranks of a job meet: a server of torch's TCPStore protocol for unmodified
/// torch clients in any language, on a thread of its own.
///
/// It never blocks and never resolves names. Whatever a client sends or leaves out concerns that
/// client alone. Functions may be called from any thread; each waits for the store's thread to
/// finish what it is doing, which is a matter of microseconds.
class StoreServer {
 public:
  /// Serves from now on, this machine only.
  explicit StoreServer(StoreServerOptions options);

  /// Closes all connections and the port.
  ~StoreServer();

  int port() const { return port_; }

  /// Closes every connection and forgets every key: nothing of an earlier epoch acts in this one.
  /// Call it when no process of the earlier epoch can connect any more.
  void new_keyspace(std::uint64_t epoch);

  /// Which machines may connect beside this one, by numeric addresses; those connected that are no
  /// longer among them are dropped. Throws InvalidArgument for what is no address.
  void allow(const std::vector<std::string>& numeric_addresses);

  /// A client that needs no port: one end of a connection to the store, which does not block. The
  /// address is what status() and the log will say. Throws SystemError if there can be none.
  UniqueFd connect(const std::string& numeric_address);

  StoreStatus status() const;

 private:
  class Thread;

  int port_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace lockstep
