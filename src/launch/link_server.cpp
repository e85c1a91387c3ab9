#include "launch/link_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>

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
constexpr std::size_t kMaxReportedAddresses = 1024;
constexpr std::chrono::milliseconds kAcceptPause{200};

bool is_out_of_resources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

LinkServer::LinkServer(EventLoop& loop, UniqueFd listener, LinkServerOptions options,
                       Callbacks callbacks)
    : loop_(loop),
      listener_(std::move(listener)),
      options_(std::move(options)),
      callbacks_(std::move(callbacks)) {
  // What a session of this server would throw is thrown here, where someone can do something.
  LinkSession({.role = LinkRole::server,
               .secret = options_.secret,
               .run_id = options_.run_id,
               .nonce = random_bytes(kLinkNonceBytes)});
  loop_.watch(listener_.get(), EPOLLIN, [this](std::uint32_t) { on_connection(); });
}

LinkServer::~LinkServer() {
  loop_.cancel(resume_);
  loop_.unwatch(listener_.get());
  for (const auto& [id, connection] : strangers_) connection->abandon();
  for (const auto& [id, connection] : peers_) connection->abandon();
}

int LinkServer::port() const {
  return port_of(listener_);
}

void LinkServer::on_connection() {
  for (int round = 0; round < kAcceptsPerRound; ++round) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
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
  if (strangers_.size() >= options_.max_strangers) evict_oldest_stranger();
  const Id id = ++last_id_;
  strangers_[id] = LinkConnection::start(
      loop_, std::move(socket),
      {.role = LinkRole::server,
       .secret = options_.secret,
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
}

void LinkServer::pause_accepting(int error) {
  // The connection stays in the kernel's queue, so that the loop would spin on it.
  report("", concat("no more connections can be accepted: ", std::strerror(error)));
  loop_.change(listener_.get(), 0);
  resume_ = loop_.after(kAcceptPause, [this] { loop_.change(listener_.get(), EPOLLIN); });
}

void LinkServer::on_opened(Id id) {
  auto node = strangers_.extract(id);
  const auto connection = node.mapped();
  peers_.insert(std::move(node));
  callbacks_.on_open(id, connection->peer_address(), connection->local_address());
}

void LinkServer::on_closed(Id id, const std::string& reason) {
  if (const auto found = strangers_.find(id); found != strangers_.end()) {
    const std::string address = found->second->peer_address();
    strangers_.erase(found);
    report(address, reason);
  } else if (peers_.erase(id) != 0) {
    callbacks_.on_close(id, reason);
  }
}

void LinkServer::report(const std::string& address, const std::string& reason) {
  if (reported_.size() >= kMaxReportedAddresses || !reported_.insert(address).second) return;
  callbacks_.on_refused(address, reason);
}

void LinkServer::evict_oldest_stranger() {
  const auto oldest = strangers_.begin();
  const auto connection = oldest->second;
  strangers_.erase(oldest);
  connection->abandon();
  report(connection->peer_address(), concat("it proved nothing while ", options_.max_strangers,
                                            " others were waiting for their turn"));
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
