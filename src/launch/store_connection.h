#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "control/store_request.h"
#include "core/unique_fd.h"
#include "launch/ip_address.h"

namespace lockstep {

/// The other end of a connection.
struct StorePeer {
  IpAddress address;
  IpAddress reached_at;  // the address of this machine that it connected to
  int port = 0;
};

/// The socket of one client of the store with what has come in and what must go out. Never blocks.
class StoreConnection {
 public:
  /// Takes an accepted socket that does not block.
  StoreConnection(UniqueFd socket, StorePeer peer);

  /// Reads what is there, up to 64 KiB, into the scanner. False when the client has gone.
  bool receive();

  /// Keeps bytes to be sent.
  void append(std::string_view bytes) { output_.append(bytes); }

  /// Sends as much as the client takes now. False when it has gone.
  bool send();

  std::size_t unsent_bytes() const { return output_.size() - sent_; }

  /// Memory held for this client.
  std::size_t held_bytes() const { return scanner_.held_bytes() + output_.capacity(); }

  StoreRequestScanner& scanner() { return scanner_; }
  int descriptor() const { return socket_.get(); }
  const StorePeer& peer() const { return peer_; }

  // Kept here for the service.
  std::uint32_t pid = 0;          // from PING
  std::uint32_t events = 0;       // that epoll looks for
  std::size_t counted_bytes = 0;  // held_bytes() as last added up
  bool to_send = false;           // is in the list of those to send to
  bool paused = false;            // its requests wait until it has read its replies
  std::chrono::steady_clock::time_point last_request;

 private:
  UniqueFd socket_;
  StorePeer peer_;
  StoreRequestScanner scanner_;
  std::string output_;
  std::size_t sent_ = 0;  // bytes of output_
};

}  // namespace lockstep
