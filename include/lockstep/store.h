#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  int port = 0;        // 0 with `serve`: a free one; see Store::port()
  bool serve = false;  // hold the server in this process
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
};

/// Keys and values that all ranks see: where they meet before they can talk to each other.
///
/// A handle is cheap to copy; copies are the same store. Thread-safe.
class Store {
 public:
  /// A client of a TCPStore (of this library, of Python, or of a launcher), or client and server.
  /// A server for a loopback host listens on loopback only.
  /// Throws InvalidArgument when the port is taken, Timeout when no server answers.
  static Store tcp(const TcpStoreOptions& options);

  /// A file on a disk that all ranks see. `world_size` ranks will use it; the last one removes it.
  static Store file(const std::string& path, int world_size);

  void set(const std::string& key, const std::string& value);
  /// Waits for the key. Throws Timeout.
  std::string get(const std::string& key);
  std::int64_t add(const std::string& key, std::int64_t amount);
  bool check(const std::vector<std::string>& keys);
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
  /// Returns whether it was there.
  bool delete_key(const std::string& key);

  /// The same store over a connection of its own. A call of one handle waits until those of its
  /// copies have returned, also for one that waits for a key; not for those of a clone.
  Store clone() const;

  /// Of a TCP store; 0 otherwise.
  int port() const;

  class Impl;
  explicit Store(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  const std::shared_ptr<Impl>& impl() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep
