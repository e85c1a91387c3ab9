#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

namespace lockstep::testing {

inline bool is_free(int port) {
  const int probe = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound = ::bind(probe, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  ::close(probe);
  return bound;
}

/// A port for a store to come. It lies below those that the system gives out by itself: what
/// listens meanwhile, at a port that it does not choose, would now and then be given just this one.
inline int free_port() {
  static int next = 12000 + static_cast<int>(::getpid()) % 16000;
  while (!is_free(next)) ++next;
  return next++;
}

}  // namespace lockstep::testing
