#include "lockstep/store.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/store_impl.h"
#include "core/tcp_probe.h"
#include "core/unique_fd.h"
#include "lockstep/c10d.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

sockaddr_storage listen_address(const std::string& host, int port, int family) {
  sockaddr_storage storage{};
  if (family == AF_INET6) {
    auto& address = reinterpret_cast<sockaddr_in6&>(storage);
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(static_cast<std::uint16_t>(port));
    address.sin6_addr = is_loopback(host) ? in6addr_loopback : in6addr_any;
  } else {
    auto& address = reinterpret_cast<sockaddr_in&>(storage);
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(is_loopback(host) ? INADDR_LOOPBACK : INADDR_ANY);
    // A loopback address other than the usual one is bound as it was given.
    if (host.starts_with("127.")) inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  }
  return storage;
}

// A socket that listens on this port: on loopback for a loopback host, on all interfaces and both
// versions of IP otherwise. c10d's own server would listen on every interface even for ranks of one
// machine, and reports a taken port in five lines.
int listen_on(const std::string& host, int port) {
  const bool version4 = is_loopback(host) && host != "::1";
  UniqueFd listener(socket(version4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int family = version4 ? AF_INET : AF_INET6;
  if (!listener && !version4) {  // a kernel without IPv6
    family = AF_INET;
    listener = UniqueFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  if (!listener) throw_errno("socket");
  const int on = 1, off = 0;
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (family == AF_INET6) setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));

  const sockaddr_storage address = listen_address(host, port, family);
  const socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener.get(), 2048) != 0) {
    if (errno != EADDRINUSE) throw_errno(concat("listening on port ", port, " of ", host));
    throw InvalidArgument(concat("port ", port, " of ", host,
                                 " is in use by another program; choose a free one (MASTER_PORT)"));
  }
  return listener.release();
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

// Whether the other side of the connection was there and closed it.
bool hung_up(const std::string& text) {
  for (const char* sign : {"got 0 bytes", "reset by peer", "Broken pipe"}) {
    if (text.find(sign) != std::string::npos) return true;
  }
  return false;
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
    throw PeerLost(concat(what, "the store is gone: ", first_line(text)),
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
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (!options.serve && !wait_for_listener(options.host, native.port, left)) {
      throw unreachable("");
    }
    try {
      return c10::make_intrusive<c10d::TCPStore>(options.host, native);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      // The store of an earlier world may end while we say hello to it; the next one opens there.
      const bool ended = !options.serve && hung_up(text);
      if (!ended || std::chrono::steady_clock::now() >= deadline) {
        throw unreachable(": " + first_line(text));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
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

bool Store::delete_key(const std::string& key) {
  return translated("delete", key, [&] { return impl_->native->deleteKey(key); });
}

Store Store::clone() const {
  auto native = translated("clone", "", [&] { return impl_->native->clone(); });
  return Store(std::make_shared<Impl>(Impl{.native = std::move(native), .port = impl_->port}));
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
