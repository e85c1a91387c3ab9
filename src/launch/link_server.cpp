#include "launch/link_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/hmac.h"
#include "launch/link_socket.h"
#include "launch/listen.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr int kAcceptsPerRound = 64;
constexpr std::chrono::milliseconds kAcceptPause{200};

bool is_out_of_resources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

LinkServer::LinkServer(EventLoop& loop, UniqueFd listener, LinkServerOptions options,
                       Callbacks callbacks)
    : loop_(loop), options_(std::move(options)), callbacks_(std::move(callbacks)) {
  // What a session of this server would throw is thrown here, where someone can do something.
  LinkSession({.role = LinkRole::server,
               .secret = options_.secret,
               .tls = options_.tls,
               .run_id = options_.run_id,
               .nonce = random_bytes(kLinkNonceBytes)});
  also_listen(std::move(listener));
}

void LinkServer::also_listen(UniqueFd listener) {
  const int fd = listener.get();
  listeners_.push_back(std::move(listener));
  loop_.watch(fd, EPOLLIN, [this, fd](std::uint32_t) { on_connection(fd); });
}

LinkServer::~LinkServer() {
  loop_.cancel(resume_);
  for (const UniqueFd& listener : listeners_) loop_.unwatch(listener.get());
  for (const auto& [id, connection] : strangers_) connection->abandon();
  for (const auto& [id, connection] : peers_) connection->abandon();
}

int LinkServer::port() const {
  return port_of(listeners_.front());
}

void LinkServer::on_connection(int listener) {
  for (int round = 0; round < kAcceptsPerRound; ++round) {
    UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      adopt(std::move(socket));
    } else if (is_out_of_resources(errno)) {
      return pause_accepting(errno);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    }
    // Anything else concerns one connection that is gone already.
  }
}

void LinkServer::adopt(UniqueFd socket) {
  if (strangers_.size() >= options_.max_strangers) evict_stranger();
  const Id id = ++last_id_;
  strangers_[id] = LinkConnection::start(
      loop_, std::move(socket),
      {.role = LinkRole::server,
       .secret = options_.secret,
       .tls = options_.tls,
       .run_id = options_.run_id,
       .nonce = random_bytes(kLinkNonceBytes)},
      options_.limits,
      {.opened = [this, id] { on_opened(id); },
       .message = [this, id](std::string text) { callbacks_.on_message(id, std::move(text)); },
       .closed = [this, id](const std::string& reason) { on_closed(id, reason); },
       .drained =
           [this, id] {
             if (callbacks_.on_drained) callbacks_.on_drained(id);
           }});
  ++strangers_by_address_[strangers_[id]->peer_address()];
}

void LinkServer::pause_accepting(int error) {
  // The connection stays in the kernel's queue, so that the loop would spin on it.
  report(refused_, callbacks_.on_refused, "",
         concat("no more connections can be accepted: ", std::strerror(error)));
  for (const UniqueFd& listener : listeners_) loop_.change(listener.get(), 0);
  loop_.cancel(resume_);
  resume_ = loop_.after(kAcceptPause, [this] {
    for (const UniqueFd& listener : listeners_) loop_.change(listener.get(), EPOLLIN);
  });
}

void LinkServer::on_opened(Id id) {
  const auto connection = strangers_.at(id);
  remove_stranger(id);
  peers_[id] = connection;
  callbacks_.on_open(id, connection->peer_address(), connection->local_address());
}

void LinkServer::on_closed(Id id, const std::string& reason) {
  if (const auto found = strangers_.find(id); found != strangers_.end()) {
    const auto connection = found->second;
    remove_stranger(id);
    const bool left = connection->left();
    report(left ? left_ : refused_, left ? callbacks_.on_left : callbacks_.on_refused,
           connection->peer_address(), reason);
  } else if (const auto peer = peers_.find(id); peer != peers_.end()) {
    const auto connection = peer->second;
    peers_.erase(peer);
    const std::string& address = connection->peer_address();
    if (connection->tampered() && tampered_.size() < kMaxReportedAddresses &&
        tampered_.insert(address).second) {
      callbacks_.on_refused(address, reason);
    }
    callbacks_.on_close(id, reason);
  }
}

void LinkServer::report(std::set<std::string>& reported, const Report& tell,
                        const std::string& address, const std::string& reason) {
  if (!tell || reported.size() > kMaxReportedAddresses || !reported.insert(address).second) return;
  const bool last = reported.size() > kMaxReportedAddresses;
  tell(address, last ? concat(reason, "; as ", kMaxReportedAddresses,
                              " addresses before; further ones are not named")
                     : reason);
}

void LinkServer::remove_stranger(Id id) {
  const auto found = strangers_.find(id);
  const auto count = strangers_by_address_.find(found->second->peer_address());
  if (--count->second == 0) strangers_by_address_.erase(count);
  strangers_.erase(found);
}

// Whoever floods the port from one place pushes out connections of its own, not those of nodes that
// are about to prove themselves.
void LinkServer::evict_stranger() {
  const auto most = std::ranges::max_element(strangers_by_address_, {},
                                             [](const auto& entry) { return entry.second; });
  const auto oldest = std::ranges::find_if(
      strangers_, [&](const auto& entry) { return entry.second->peer_address() == most->first; });
  const auto connection = oldest->second;
  remove_stranger(oldest->first);
  connection->abandon();
  report(refused_, callbacks_.on_refused, connection->peer_address(),
         concat("it proved nothing, and ", options_.max_strangers,
                " connections that had proven nothing were open"));
}

void LinkServer::send(Id id, std::string_view message) {
  if (const auto found = peers_.find(id); found != peers_.end()) found->second->send(message);
}

void LinkServer::close(Id id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  const auto connection = found->second;
  peers_.erase(found);
  connection->close();
  std::erase_if(closing_, [](const auto& weak) { return weak.expired(); });
  closing_.push_back(connection);
}

std::size_t LinkServer::queued_bytes(Id id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? 0 : found->second->queued_bytes();
}

std::size_t LinkServer::queued_bytes() const {
  std::size_t total = 0;
  for (const auto& [id, connection] : peers_) total += connection->queued_bytes();
  for (const auto& weak : closing_) {
    if (const auto connection = weak.lock()) total += connection->queued_bytes();
  }
  return total;
}

}  // namespace lockstep
