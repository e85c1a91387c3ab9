#include "launch/link_client.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/hmac.h"
#include "launch/connect_advice.h"
#include "launch/link_socket.h"
#include "launch/name_lookup.h"
#include "lockstep/error.h"

namespace lockstep {

using std::chrono::milliseconds;

// The steps of an attempt: look up, connect to one address after another, shake hands, be a link.
class LinkClient::Attempt : public std::enable_shared_from_this<LinkClient::Attempt> {
 public:
  Attempt(EventLoop& loop, LinkClientOptions options, Callbacks callbacks)
      : loop_(loop), options_(std::move(options)), callbacks_(std::move(callbacks)) {}

  void start();
  void stop();

  const std::shared_ptr<LinkConnection>& connection() const { return connection_; }
  Reach reach() const { return reach_; }

 private:
  LinkSessionOptions session_options() const;
  void on_addresses(std::vector<IpAddress> addresses, const std::string& reason);
  void try_next_address();
  void on_decided();
  void give_up_address(const std::string& reason, int error);
  void stop_connecting();
  void finish(const std::string& reason);

  EventLoop& loop_;
  LinkClientOptions options_;
  Callbacks callbacks_;
  std::optional<NameLookup> lookup_;
  std::vector<IpAddress> addresses_;
  std::size_t next_address_ = 0;
  std::string failures_;  // "10.0.0.1: Connection refused, ..."
  int last_error_ = 0;    // a value of errno
  std::string last_reason_;
  Reach reach_ = Reach::nothing;
  UniqueFd connecting_;
  EventLoop::TimerId deadline_{};
  std::shared_ptr<LinkConnection> connection_;
  bool finished_ = false;
};

LinkSessionOptions LinkClient::Attempt::session_options() const {
  return {.role = LinkRole::client,
          .secret = options_.secret,
          .tls = options_.tls,
          .run_id = options_.run_id,
          .nonce = random_bytes(kLinkNonceBytes)};
}

void LinkClient::Attempt::start() {
  LinkSession{session_options()};  // what it would throw is thrown to whoever made the client
  deadline_ = loop_.after(options_.connect_timeout, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->finish(concat("the address of '", self->options_.server.host,
                          "' was not found in time: the resolver does not answer"));
    }
  });
  lookup_.emplace(loop_, options_.server.host,
                  [weak = weak_from_this()](auto addresses, const std::string& reason) {
                    const auto self = weak.lock();
                    if (self) self->on_addresses(std::move(addresses), reason);
                  });
}

void LinkClient::Attempt::on_addresses(std::vector<IpAddress> addresses,
                                       const std::string& reason) {
  loop_.cancel(deadline_);
  addresses_ = std::move(addresses);
  if (addresses_.empty()) {
    finish(concat("the host '", options_.server.host, "' cannot be resolved: ", reason, ": ",
                  lookup_advice(options_.server)));
  } else {
    try_next_address();
  }
}

void LinkClient::Attempt::try_next_address() {
  while (next_address_ < addresses_.size()) {
    const IpAddress& address = addresses_[next_address_];
    try {
      connecting_ = begin_connect(address, options_.server.port);
    } catch (const SystemError& error) {
      failures_ += concat(failures_.empty() ? "" : "; ", address.to_string(), ": ", error.what());
      last_error_ = ENETUNREACH;
      last_reason_ = error.what();
      ++next_address_;
      continue;
    }
    loop_.watch(connecting_.get(), EPOLLOUT, [weak = weak_from_this()](std::uint32_t) {
      if (const auto self = weak.lock()) self->on_decided();
    });
    const auto share = options_.connect_timeout / static_cast<int>(addresses_.size());
    deadline_ = loop_.after(share, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->give_up_address("no answer", ETIMEDOUT);
    });
    return;
  }
  if (!options_.advises) return finish(concat("port ", options_.server.port, ": ", last_reason_));
  const std::string advice = connect_advice(last_error_, options_.server);
  finish(concat("cannot connect to ", options_.server.to_string(), " (", failures_, ")",
                advice.empty() ? "" : ": ", advice));
}

void LinkClient::Attempt::on_decided() {
  if (const int error = connect_error(connecting_.get())) {
    return give_up_address(std::strerror(error), error);
  }
  reach_ = Reach::heard;
  UniqueFd socket(connecting_.get());
  loop_.cancel(deadline_);
  loop_.unwatch(connecting_.release());
  connection_ =
      LinkConnection::start(loop_, std::move(socket), session_options(), options_.limits,
                            {.opened =
                                 [weak = weak_from_this()] {
                                   const auto self = weak.lock();
                                   if (!self) return;
                                   self->callbacks_.on_open(self->connection_->peer_address(),
                                                            self->connection_->local_address());
                                 },
                             .message =
                                 [weak = weak_from_this()](std::string message) {
                                   if (const auto self = weak.lock())
                                     self->callbacks_.on_message(std::move(message));
                                 },
                             .closed =
                                 [weak = weak_from_this()](const std::string& reason) {
                                   if (const auto self = weak.lock()) self->finish(reason);
                                 },
                             .drained =
                                 [weak = weak_from_this()] {
                                   const auto self = weak.lock();
                                   if (self && self->callbacks_.on_drained)
                                     self->callbacks_.on_drained();
                                 }});
}

void LinkClient::Attempt::give_up_address(const std::string& reason, int error) {
  last_error_ = error;
  last_reason_ = reason;
  if (error == ECONNREFUSED) reach_ = Reach::refused;
  failures_ +=
      concat(failures_.empty() ? "" : "; ", addresses_[next_address_].to_string(), ": ", reason);
  ++next_address_;
  stop_connecting();
  try_next_address();
}

void LinkClient::Attempt::stop_connecting() {
  loop_.cancel(deadline_);
  if (connecting_) loop_.unwatch(connecting_.get());
  connecting_.reset();
}

void LinkClient::Attempt::finish(const std::string& reason) {
  if (std::exchange(finished_, true)) return;
  const auto self = shared_from_this();
  lookup_.reset();
  stop_connecting();
  callbacks_.on_close(reason);
}

void LinkClient::Attempt::stop() {
  finished_ = true;
  lookup_.reset();
  stop_connecting();
}

LinkClient::LinkClient(EventLoop& loop, LinkClientOptions options, Callbacks callbacks)
    : attempt_(std::make_shared<Attempt>(loop, std::move(options), std::move(callbacks))) {
  attempt_->start();
}

LinkClient::~LinkClient() {
  attempt_->stop();
  if (attempt_->connection()) attempt_->connection()->abandon();
}

bool LinkClient::open() const {
  return attempt_->connection() && attempt_->connection()->open();
}

Reach LinkClient::reach() const {
  return attempt_->reach();
}

void LinkClient::send(std::string_view message) {
  if (open()) attempt_->connection()->send(message);
}

void LinkClient::close() {
  attempt_->stop();
  if (attempt_->connection()) attempt_->connection()->close();
}

std::size_t LinkClient::queued_bytes() const {
  return attempt_->connection() ? attempt_->connection()->queued_bytes() : 0;
}

}  // namespace lockstep
