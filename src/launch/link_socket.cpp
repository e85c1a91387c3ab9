#include "launch/link_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

SocketAddress socket_address(const IpAddress& address, int port) {
  SocketAddress result;
  const std::string text = address.to_string();
  if (address.family() == AF_INET) {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&result.storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<std::uint16_t>(port));
    LOCKSTEP_CHECK(::inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1, text);
    result.length = sizeof(sockaddr_in);
  } else {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<std::uint16_t>(port));
    LOCKSTEP_CHECK(::inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1, text);
    result.length = sizeof(sockaddr_in6);
  }
  return result;
}

UniqueFd make_socket(int family) {
  return UniqueFd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

bool set_option(int socket, int level, int name, int value) {
  return ::setsockopt(socket, level, name, &value, sizeof(value)) == 0;
}

template <typename GetName>
std::string numeric_end(int socket, GetName get_name) {
  SocketAddress address;
  if (get_name(socket, address.get(), &address.length) != 0) return "";
  const auto ip = IpAddress::from(address.get());
  return ip ? ip->to_string() : "";
}

}  // namespace

UniqueFd begin_connect(const IpAddress& address, int port) {
  UniqueFd socket = make_socket(address.family());
  if (!socket) throw_errno("socket");
  SocketAddress target = socket_address(address, port);
  if (::connect(socket.get(), target.get(), target.length) != 0 && errno != EINPROGRESS) {
    throw_errno("connect");
  }
  return socket;
}

int connect_error(int socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

void prepare_link_socket(int socket, milliseconds dead_peer_timeout) {
  // Each of these makes a link better and none makes it possible: a refusal is no error.
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(dead_peer_timeout.count()));
  // A third of the time in silence, then probes over the rest of it.
  const int seconds = std::max(3, static_cast<int>(dead_peer_timeout.count() / 1000));
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds / 3);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, seconds / 6));
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

std::string peer_address(int socket) {
  return numeric_end(socket, ::getpeername);
}

std::string local_address(int socket) {
  return numeric_end(socket, ::getsockname);
}

}  // namespace lockstep
