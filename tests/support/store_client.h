#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/unique_fd.h"
#include "lockstep/error.h"
#include "tests/support/store_wire.h"

namespace lockstep {

/// A raw connection to a store, for tests. Waits ten seconds at most for anything.
class StoreClient {
 public:
  /// Connects to loopback, from the address `from` if one is given, and says VALIDATE.
  explicit StoreClient(int port, const std::string& from = "") : StoreClient(Unopened{}) {
    connect(port, from);
    send(wire::validate());
  }

  /// A connection that has said nothing.
  static StoreClient silent(int port, const std::string& from = "") {
    StoreClient client{Unopened{}};
    client.connect(port, from);
    return client;
  }

  /// A socket that is not connected yet.
  static StoreClient unconnected() { return StoreClient(Unopened{}); }

  void connect(int port, const std::string& from = "") {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    if (!from.empty()) {
      ::inet_pton(AF_INET, from.c_str(), &address.sin_addr);
      if (::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
        throw_errno("bind to " + from);
      }
    }
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      throw_errno("connect");
    }
  }

  /// False if the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count < 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  /// The next `count` bytes; fewer if the server closed the connection or nothing came in time.
  std::string receive(std::size_t count) {
    std::string bytes(count, '\0');
    std::size_t got = 0;
    while (got < count) {
      const ssize_t now = ::recv(socket_.get(), bytes.data() + got, count - got, 0);
      if (now <= 0) break;
      got += static_cast<std::size_t>(now);
    }
    bytes.resize(got);
    return bytes;
  }

  std::string ask(std::string_view request, std::size_t reply_bytes) {
    send(request);
    return receive(reply_bytes);
  }

  /// Waits until the server has closed the connection.
  bool closed_by_server() {
    char byte;
    const ssize_t count = ::recv(socket_.get(), &byte, 1, 0);
    return count == 0 || (count < 0 && errno == ECONNRESET);
  }

  /// Whether the server answers.
  bool answers() { return ask(wire::ping(77), 4) == wire::integer<std::uint32_t>(77); }

 private:
  struct Unopened {};
  explicit StoreClient(Unopened) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (!socket_) throw_errno("socket");
    const timeval limit{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  }

  UniqueFd socket_;
};

}  // namespace lockstep
