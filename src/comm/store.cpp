#include "lockstep/store.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/store_impl.h"
#include "core/tcp_probe.h"
#include "lockstep/c10d.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// A socket that listens on this port. c10d's own server would listen on every interface even for
// ranks of one machine, and reports a taken port in five lines.
int listen_on(const std::string& host, int port) {
  const bool version6 = host == "::1";
  const int descriptor = socket(version6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) throw_errno("socket");
  const int on = 1;
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));

  sockaddr_in address4{};
  address4.sin_family = AF_INET;
  address4.sin_port = htons(static_cast<std::uint16_t>(port));
  address4.sin_addr.s_addr = htonl(is_loopback(host) ? INADDR_LOOPBACK : INADDR_ANY);
  sockaddr_in6 address6{};
  address6.sin6_family = AF_INET6;
  address6.sin6_port = address4.sin_port;
  address6.sin6_addr = in6addr_loopback;
  // A loopback address other than the usual one is bound as it was given.
  if (host.starts_with("127.")) inet_pton(AF_INET, host.c_str(), &address4.sin_addr);

  const auto* address = version6 ? reinterpret_cast<const sockaddr*>(&address6)
                                 : reinterpret_cast<const sockaddr*>(&address4);
  const socklen_t length = version6 ? sizeof(address6) : sizeof(address4);
  if (bind(descriptor, address, length) != 0 || listen(descriptor, 2048) != 0) {
    const int code = errno;
    close(descriptor);
    if (code == EADDRINUSE) {
      throw InvalidArgument(
          concat("port ", port, " of ", host,
                 " is in use by another program; choose a free one (MASTER_PORT)"));
    }
    errno = code;
    throw_errno(concat("listening on port ", port, " of ", host));
  }
  return descriptor;
}

int port_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    throw_errno("getsockname");
  }
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// Calls the store and tells its failures in this library's errors.
template <typename Call>
auto translated(const char* operation, const std::string& key, Call call) {
  try {
    return call();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const std::string what = concat("store: ", operation, " of key '", key, "': ");
    if (text.find("imeout") != std::string::npos || text.find("timed out") != std::string::npos) {
      throw Timeout(concat(what, "no answer in time"));
    }
    throw PeerLost(concat(what, "the store is gone: ", text.substr(0, text.find('\n'))),
                   {.rank = -1, .peers = {}, .operation = concat("store ", operation)});
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_tcp_store(const TcpStoreOptions& options,
                                                  std::optional<int> count_as_worker_of,
                                                  int* port) {
  if (options.port < 0 || options.port > 65535) {
    throw InvalidArgument(concat("store: port ", options.port, " is outside 0..65535"));
  }
  c10d::TCPStoreOptions native;
  native.port = static_cast<std::uint16_t>(options.port);
  native.isServer = options.serve;
  native.timeout = options.timeout;
  native.waitWorkers = false;
  if (options.serve) {
    const int listener = listen_on(options.host, options.port);
    native.port = static_cast<std::uint16_t>(port_of(listener));
    native.masterListenFd = listener;
  } else if (count_as_worker_of) {
    // A Python rank 0 waits until all ranks have counted themselves.
    native.numWorkers = static_cast<std::size_t>(*count_as_worker_of);
    native.waitWorkers = true;
  }
  if (port) *port = native.port;
  const auto unreachable = [&](const std::string& reason) {
    return Timeout(concat("no store answers at ", options.host, ":", native.port, " after ",
                          std::chrono::duration<double>(options.timeout).count(), " s", reason),
                   {0});
  };
  if (!options.serve && !wait_for_listener(options.host, native.port, options.timeout)) {
    throw unreachable("");
  }
  try {
    return c10::make_intrusive<c10d::TCPStore>(options.host, native);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw unreachable(": " + text.substr(0, text.find('\n')));
  }
}

Store Store::tcp(const TcpStoreOptions& options) {
  int port = 0;
  auto native = connect_tcp_store(options, std::nullopt, &port);
  return Store(std::make_shared<Impl>(Impl{.native = std::move(native), .port = port}));
}

Store Store::file(const std::string& path, int world_size) {
  return wrap_store(c10::make_intrusive<c10d::FileStore>(path, world_size));
}

void Store::set(const std::string& key, const std::string& value) {
  translated("set", key, [&] { impl_->native->set(key, value); });
}

std::string Store::get(const std::string& key) {
  return translated("get", key, [&] { return impl_->native->get_to_str(key); });
}

std::int64_t Store::add(const std::string& key, std::int64_t amount) {
  return translated("add", key, [&] { return impl_->native->add(key, amount); });
}

bool Store::check(const std::vector<std::string>& keys) {
  return translated("check", keys.empty() ? "" : keys.front(),
                    [&] { return impl_->native->check(keys); });
}

void Store::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  translated("wait", keys.empty() ? "" : keys.front(), [&] { impl_->native->wait(keys, timeout); });
}

int Store::port() const {
  return impl_->port;
}

Store wrap_store(c10::intrusive_ptr<c10d::Store> store) {
  return Store(std::make_shared<Store::Impl>(Store::Impl{.native = std::move(store), .port = 0}));
}

c10::intrusive_ptr<c10d::Store> unwrap(const Store& store) {
  return store.impl()->native;
}

}  // namespace lockstep
