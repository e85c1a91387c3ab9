#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/event_loop.h"
#include "launch/messages.h"
#include "launch/store_listener.h"
#include "launch/stream_bundle.h"

namespace lockstep {

/// --store local, on a node whose coordinator is elsewhere: serves the store on loopback to this
/// node's workers by passing their connections on over the link to where the store is.
///
/// Connections belong to the epoch in which they were made and end with it, and with the link that
/// carries them. Those that come while there is no link wait for the next. Not thread-safe; never
/// blocks. The loop must outlive it.
class StoreForwarder {
 public:
  struct Callbacks {
    std::function<void(std::string message)> send;  // over the link
    std::function<std::size_t()> queued_bytes;      // for the link
    std::function<void(std::string)> log;
  };

  StoreForwarder(EventLoop& loop, Callbacks callbacks);

  /// Closes the connections of the epoch before, and returns the port for those of this one. Throws
  /// SystemError.
  int open(Epoch epoch);

  void close();

  void on_connected();
  void on_disconnected();

  /// See StreamBundle.
  void on_message(std::string_view message) { streams_.on_message(message); }
  void on_drained() { streams_.on_drained(); }

 private:
  void take(UniqueFd socket);

  EventLoop& loop_;
  Callbacks callbacks_;
  StreamBundle streams_;
  std::optional<StoreListener> listener_;
  std::vector<UniqueFd> waiting_;  // for the link
  Epoch epoch_ = 0;
  bool connected_ = false;
};

}  // namespace lockstep
