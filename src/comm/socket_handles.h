#pragma once

#include <set>
#include <utility>
#include <vector>

namespace lockstep {

/// Handles of our own on TCP connections that a library opened and keeps to itself, so that they
/// can be shut down from outside.
///
/// Gloo has no way to end an operation that waits for a peer: closing its connections wakes the
/// peers but not the local waiters. Shutting down the sockets does wake them, because Gloo then
/// reads an end of file from every peer. A duplicated descriptor stays valid whatever the library
/// does with its own, so a number that was closed and given to another file cannot be hit.
class SocketHandles {
 public:
  /// What is open now. Made before the library opens its connections.
  class Snapshot {
   public:
    static Snapshot take();

   private:
    friend class SocketHandles;
    std::set<unsigned long> inodes_;
  };

  SocketHandles() = default;
  SocketHandles(SocketHandles&& other) noexcept
      : descriptors_(std::exchange(other.descriptors_, {})) {}
  SocketHandles& operator=(SocketHandles&& other) noexcept;
  ~SocketHandles();

  /// Duplicates every connected TCP socket opened since `before`, except connections to or from
  /// `excluded_port` (the store's). In the window between the two calls no other thread should open
  /// connections.
  static SocketHandles opened_since(const Snapshot& before, int excluded_port);

  /// Ends all of them in both directions while Gloo uses them. Thread-safe, may be called
  /// repeatedly.
  void shut_down() const;

  /// Ends those that nobody uses any more.
  void end() const;

  std::size_t size() const { return descriptors_.size(); }
  const std::vector<int>& descriptors() const { return descriptors_; }

 private:
  std::vector<int> descriptors_;
};

}  // namespace lockstep
