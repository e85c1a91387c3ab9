#include "launch/listen.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <cerrno>
#include <memory>
#include <system_error>

#include "launch/port_owner.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using AddressInfo = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// getaddrinfo because it also knows the interface of a link-local address ("fe80::1%eth0").
AddressInfo socket_address(const std::string& text, int port) {
  if (port < 0 || port > 65535) {
    throw InvalidArgument(concat("port ", port, " does not exist; ports are 0 (any) to 65535"));
  }
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (text.empty() ||
      ::getaddrinfo(text.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
    throw InvalidArgument(concat("'", text,
                                 "' is no numeric address to listen at; give one such as "
                                 "127.0.0.1 or ::1"));
  }
  return AddressInfo(found, ::freeaddrinfo);
}

[[noreturn]] void throw_cannot_listen(const std::string& address, int port, int error) {
  std::string reason = std::generic_category().message(error);
  if (error == EADDRINUSE) {
    const auto owner = port_owner(port);
    reason = concat("the port is taken", owner ? " by " + owner->describe() : "",
                    "; choose another one, or 0 for any that is free");
  } else if (error == EADDRNOTAVAIL) {
    reason = "this machine does not have that address";
  }
  throw SystemError(concat("cannot listen at ", address, " port ", port, ": ", reason));
}

// None, and errno, if it cannot be listened at.
UniqueFd open_listener(const std::string& numeric_address, int port) {
  const AddressInfo address = socket_address(numeric_address, port);
  UniqueFd socket(
      ::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket) return {};
  const int on = 1, off = 0;
  // Otherwise the port of a job that has just ended stays taken for a minute.
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address->ai_family == AF_INET6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (::bind(socket.get(), address->ai_addr, address->ai_addrlen) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    const int error = errno;
    socket.reset();
    errno = error;
  }
  return socket;
}

}  // namespace

UniqueFd listen_on(const std::string& numeric_address, int port) {
  UniqueFd socket = open_listener(numeric_address, port);
  if (!socket) throw_cannot_listen(numeric_address, port, errno);
  return socket;
}

std::vector<UniqueFd> listen_on_each(const std::vector<std::string>& numeric_addresses, int port) {
  constexpr int kTries = 50;
  for (int tries = 1;; ++tries) {
    std::vector<UniqueFd> sockets;
    int common = port;
    std::string failed;
    int error = 0;
    for (const std::string& address : numeric_addresses) {
      UniqueFd socket = open_listener(address, common);
      if (socket) {
        common = port_of(socket);
        sockets.push_back(std::move(socket));
      } else if (errno != EADDRNOTAVAIL || failed.empty()) {
        error = errno;
        failed = address;
      }
    }
    // Somebody else has the port that was free at the address before: another may be free at all.
    if (error == EADDRINUSE && port == 0 && tries < kTries) continue;
    if (error != 0 && (sockets.empty() || error != EADDRNOTAVAIL)) {
      throw_cannot_listen(failed, common, error);
    }
    return sockets;
  }
}

UniqueFd listen_everywhere(int port) {
  const UniqueFd v6(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  return listen_on(v6 ? "::" : "0.0.0.0", port);
}

int port_of(const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw_errno("getsockname");
  }
  // The port is at the same place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace lockstep
