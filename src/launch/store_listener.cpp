#include "launch/store_listener.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <cerrno>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr int kAcceptsAtOnce = 64;  // then others have their turn
constexpr auto kPause = std::chrono::milliseconds(100);

const sockaddr* as_address(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr*>(&storage);
}

// Who is at the other end; std::nullopt if the connection broke before it was accepted.
std::optional<StorePeer> peer_of(const UniqueFd& socket, const sockaddr_storage& remote) {
  sockaddr_storage local{};
  socklen_t length = sizeof(local);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &length);
  const auto address = IpAddress::from(as_address(remote));
  const auto own = IpAddress::from(as_address(local));
  if (!address || !own) return std::nullopt;
  // The port is at the same place in both families.
  const int port = ntohs(reinterpret_cast<const sockaddr_in&>(remote).sin_port);
  return StorePeer{.address = *address, .reached_at = *own, .port = port};
}

bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

StoreListener::StoreListener(EventLoop& loop, UniqueFd socket, Callbacks callbacks)
    : loop_(loop), socket_(std::move(socket)), callbacks_(std::move(callbacks)) {
  const int flags = ::fcntl(socket_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    throw_errno("the store's listening socket");
  }
  watch();
}

StoreListener::~StoreListener() {
  loop_.cancel(pause_);
  if (watched_) loop_.unwatch(socket_.get());
}

// A connection whose two ends have one address comes from this machine: the kernel takes no such
// packets from a network.
bool StoreListener::is_allowed(const StorePeer& peer) const {
  return peer.address.is_loopback() || peer.address == peer.reached_at ||
         allowed_.contains(peer.address);
}

void StoreListener::watch() {
  loop_.watch(socket_.get(), EPOLLIN, [this](std::uint32_t) { accept_some(); });
  watched_ = true;
}

void StoreListener::accept_some() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    sockaddr_storage remote{};
    socklen_t length = sizeof(remote);
    UniqueFd socket(::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&remote), &length,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (is_shortage(errno)) return wait_for_descriptors(errno);
      if (errno == EAGAIN) return;
      continue;  // that connection broke; the next one may be fine
    }
    out_of_descriptors_ = false;
    const auto peer = peer_of(socket, remote);
    if (!peer) continue;
    if (is_allowed(*peer)) {
      callbacks_.accepted(std::move(socket), *peer);
    } else {
      callbacks_.refused(concat(peer->address.to_string(), ": not part of the job"));
    }
  }
}

// Who connects meanwhile waits in the kernel's queue, which is better than being turned away:
// torch's client gives up then.
void StoreListener::wait_for_descriptors(int error) {
  // accept4 complains even when nobody is there to be accepted.
  pollfd waiting{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&waiting, 1, 0) <= 0) return;
  if (!std::exchange(out_of_descriptors_, true)) {
    callbacks_.log(
        concat("store: connections have to wait: ", std::generic_category().message(error),
               "; raise the limit on open files (ulimit -n)"));
  }
  loop_.unwatch(socket_.get());
  watched_ = false;
  pause_ = loop_.after(kPause, [this] { watch(); });
}

void StoreListener::turn_away_waiting() {
  while (UniqueFd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)) || errno == EINTR ||
         errno == ECONNABORTED) {
  }
}

}  // namespace lockstep
