#include "rpc/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include "lockstep/error.h"

namespace lockstep::rpc {
namespace {

using Clock = std::chrono::steady_clock;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// In the abstract namespace, which has no files that could be left behind.
SocketAddress unix_address(const std::string& name) {
  SocketAddress result;
  auto& address = reinterpret_cast<sockaddr_un&>(result.storage);
  address.sun_family = AF_UNIX;
  const std::size_t size = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), size);
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return result;
}

std::optional<SocketAddress> numeric_address(const std::string& text, int port) {
  SocketAddress result;
  auto& four = reinterpret_cast<sockaddr_in&>(result.storage);
  auto& six = reinterpret_cast<sockaddr_in6&>(result.storage);
  if (inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(static_cast<std::uint16_t>(port));
    result.length = sizeof(four);
    return result;
  }
  if (inet_pton(AF_INET6, text.c_str(), &six.sin6_addr) == 1) {
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(static_cast<std::uint16_t>(port));
    result.length = sizeof(six);
    return result;
  }
  return std::nullopt;
}

std::string numeric_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
              sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof(text));
  }
  return text;
}

UniqueFd make_socket(int family) {
  UniqueFd result(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!result) throw_errno("rpc: socket");
  return result;
}

Connected connect_socket(const SocketAddress& address, Clock::time_point deadline) {
  Connected result{.socket = make_socket(address.storage.ss_family), .failure = {}};
  const int descriptor = result.socket.get();
  int error = 0;
  // A unix socket whose backlog is full says EAGAIN and has to be asked again.
  while (connect(descriptor, address.get(), address.length) != 0) {
    error = errno;
    if (error == EINTR) error = EINPROGRESS;  // it goes on by itself
    if (error != EAGAIN || Clock::now() >= deadline) break;
    poll(nullptr, 0, 2);
    error = 0;
  }
  if (error == EINPROGRESS) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd waiting{.fd = descriptor, .events = POLLOUT, .revents = 0};
    const auto wait = std::clamp<std::int64_t>(left.count(), 0, 1 << 30);
    error = ETIMEDOUT;
    socklen_t size = sizeof(error);
    if (poll(&waiting, 1, static_cast<int>(wait)) == 1) {
      getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  if (error != 0) {
    result.failure = std::strerror(error);
    result.refused = error == ECONNREFUSED || error == ECONNRESET;
    result.socket.reset();
  }
  return result;
}

}  // namespace

std::string PeerAddress::to_text() const {
  return concat("1 ", machine, " ", process_id, " ", unix_name, " ",
                tcp_address.empty() ? "-" : tcp_address, " ", tcp_port);
}

std::optional<PeerAddress> PeerAddress::parse(const std::string& text) {
  PeerAddress result;
  int version = 0;
  std::istringstream words(text);
  if (!(words >> version >> result.machine >> result.process_id >> result.unix_name >>
        result.tcp_address >> result.tcp_port) ||
      version != 1) {
    return std::nullopt;
  }
  if (result.tcp_address == "-") result.tcp_address.clear();
  return result;
}

std::string machine_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  // Names of abstract sockets belong to a network namespace.
  struct stat status {};
  const auto network = stat("/proc/self/ns/net", &status) == 0 ? status.st_ino : 0;
  const char* told = std::getenv("LOCKSTEP_MACHINE");
  std::string name = concat(boot, "/", network, "/", told == nullptr ? "" : told);
  std::ranges::replace(name, ' ', '_');
  return name;
}

UniqueFd listen_unix(const std::string& name) {
  UniqueFd listener = make_socket(AF_UNIX);
  const SocketAddress address = unix_address(name);
  if (bind(listener.get(), address.get(), address.length) != 0 ||
      listen(listener.get(), 512) != 0) {
    throw_errno(concat("rpc: listening at the socket @", name));
  }
  return listener;
}

UniqueFd listen_tcp(const std::string& text, int* port) {
  const auto address = numeric_address(text, 0);
  if (!address) {
    throw InvalidArgument(concat("rpc: address is \"", text, "\"; it must be a numeric address"));
  }
  UniqueFd listener = make_socket(address->storage.ss_family);
  if (bind(listener.get(), address->get(), address->length) != 0 ||
      listen(listener.get(), 512) != 0) {
    throw_errno(concat("rpc: listening at ", text));
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    throw_errno("rpc: getsockname");
  }
  *port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  return listener;
}

Connected connect_unix(const std::string& name, Clock::time_point deadline) {
  Connected result = connect_socket(unix_address(name), deadline);
  if (result.socket && !is_own_user(result.socket.get())) {
    return {.socket = {}, .failure = "its socket belongs to another user"};
  }
  return result;
}

Connected connect_tcp(const std::string& text, int port, Clock::time_point deadline) {
  const auto address = numeric_address(text, port);
  if (!address) return {.socket = {}, .failure = concat("\"", text, "\" is no address")};
  Connected result = connect_socket(*address, deadline);
  if (result.socket) prepare_tcp(result.socket.get());
  return result;
}

void prepare_tcp(int socket) {
  constexpr int kDeadPeerSeconds = 30;
  const auto set = [socket](int level, int name, int value) {
    // Each makes a connection better and none makes it possible: a refusal is no error.
    setsockopt(socket, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kDeadPeerSeconds * 1000);
  // A third of the time in silence, then probes over the rest of it.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kDeadPeerSeconds / 3);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kDeadPeerSeconds / 6);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

bool is_own_user(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
         credentials.uid == geteuid();
}

std::string address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  for (const addrinfo* each = found; each; each = each->ai_next) {
    // A datagram socket chooses its address and sends nothing.
    UniqueFd probe(socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    if (probe && connect(probe.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &length) == 0) {
      return numeric_text(reinterpret_cast<sockaddr*>(&own));
    }
  }
  return {};
}

std::string address_of_interface(const std::string& name) {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found, freeifaddrs);
  std::string result;
  for (const ifaddrs* each = found; each; each = each->ifa_next) {
    if (!each->ifa_addr || name != each->ifa_name) continue;
    if (each->ifa_addr->sa_family == AF_INET) return numeric_text(each->ifa_addr);
    // Link-local addresses mean something together with an interface only.
    if (each->ifa_addr->sa_family == AF_INET6 && result.empty() &&
        !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(each->ifa_addr)->sin6_addr)) {
      result = numeric_text(each->ifa_addr);
    }
  }
  return result;
}

}  // namespace lockstep::rpc
