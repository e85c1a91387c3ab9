#include "launch/etcd_client.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "launch/link_socket.h"
#include "lockstep/error.h"

namespace lockstep {

EtcdClient::EtcdClient(EventLoop& loop, std::vector<Endpoint> servers, EtcdAccess access,
                       std::chrono::milliseconds patience)
    : loop_(loop), servers_(std::move(servers)), access_(std::move(access)), patience_(patience) {
  if (access_.tls) trust_ = std::make_unique<TlsTrust>(access_.trust);
}

EtcdClient::~EtcdClient() {
  loop_.cancel(begin_);
  disconnect();
}

void EtcdClient::ask(EtcdRequest request, Done done) {
  LOCKSTEP_CHECK(!done_, "etcd is already asked for ", request_.path);
  request_ = std::move(request);
  done_ = std::move(done);
  tried_ = 0;
  reach_ = Reach::nothing;
  failures_.clear();
  has_logged_in_ = false;
  logs_in_ = !access_.user.empty() && token_.empty();
  begin_ = loop_.after({}, [this] { try_server(); });
}

void EtcdClient::try_server() {
  if (tried_ == servers_.size()) return finish(std::nullopt);
  deadline_ = loop_.after(
      patience_, [this] { give_up_server(concat("no answer within ", patience_.count(), " ms")); });
  lookup_.emplace(loop_, server().host, [this](auto addresses, const std::string& reason) {
    on_addresses(std::move(addresses), reason);
  });
}

void EtcdClient::on_addresses(std::vector<IpAddress> addresses, const std::string& reason) {
  if (addresses.empty()) return give_up_server(concat("it cannot be resolved: ", reason));
  addresses_ = std::move(addresses);
  next_address_ = 0;
  try_address();
}

void EtcdClient::try_address() {
  try {
    socket_ = begin_connect(addresses_[next_address_], server().port);
  } catch (const SystemError& error) {
    return give_up_address(error.what());
  }
  connected_ = false;
  response_ = HttpResponse();
  tls_.reset();
  output_.clear();
  loop_.watch(socket_.get(), EPOLLOUT, [this](std::uint32_t events) { on_event(events); });
}

void EtcdClient::on_event(std::uint32_t events) {
  if (!connected_ && !begin_talk()) return;
  if (!output_.empty() && !send_output()) return;
  if ((events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0) return receive();
  loop_.change(socket_.get(), output_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

// These are false where the attempt is over.

bool EtcdClient::begin_talk() {
  if (const int error = connect_error(socket_.get())) {
    if (error == ECONNREFUSED) reach_ = std::max(reach_, Reach::refused);
    give_up_address(std::strerror(error));
    return false;
  }
  connected_ = true;
  reach_ = Reach::heard;
  if (!trust_) {
    output_ = http_text();
    return true;
  }
  try {
    tls_.emplace(*trust_, server().host);
    tls_->send(http_text());
    output_ = tls_->take_output();
    return true;
  } catch (const Error& error) {
    give_up_server(error.what());
    return false;
  }
}

bool EtcdClient::send_output() {
  const ssize_t sent = ::send(socket_.get(), output_.data(), output_.size(), MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) {
    give_up_server(std::strerror(errno));
    return false;
  }
  if (sent > 0) output_.erase(0, static_cast<std::size_t>(sent));
  return true;
}

std::string EtcdClient::http_text() const {
  const EtcdRequest request = logs_in_ ? log_in(access_.user, access_.password) : request_;
  const bool shows_token = !logs_in_ && !token_.empty();
  return concat("POST ", request.path, " HTTP/1.1\r\nHost: ", server().to_string(), "\r\n",
                shows_token ? concat("Authorization: ", token_, "\r\n") : "",
                "Content-Type: application/json\r\nContent-Length: ", request.body.size(),
                "\r\nConnection: close\r\n\r\n", request.body);
}

void EtcdClient::receive() {
  std::array<char, 16384> buffer;
  const ssize_t size = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size < 0) return give_up_server(std::strerror(errno));
  try {
    if (size == 0) {
      response_.take_end();
    } else {
      take({buffer.data(), static_cast<std::size_t>(size)});
    }
  } catch (const InvalidArgument& error) {
    return give_up_server(error.what());
  }
  if (response_.complete()) return on_response();
  loop_.change(socket_.get(), output_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

void EtcdClient::take(std::string_view bytes) {
  if (!tls_) return response_.take(bytes);
  const std::string text = tls_->receive(bytes);
  output_ += tls_->take_output();
  if (!text.empty()) response_.take(text);
}

void EtcdClient::on_response() {
  const bool is_served = response_.status() == 200;
  const bool asks_again = !is_served && !logs_in_ && !access_.user.empty() && !has_logged_in_ &&
                          asks_for_login(response_.status(), response_.body());
  if (!is_served && !asks_again) {
    return give_up_server(read_error(response_.status(), response_.body()));
  }
  if (is_served && !logs_in_) return finish(response_.body());
  // After a login the request follows; after a token that is none any more, a login.
  try {
    token_ = is_served ? read_token(response_.body()) : "";
  } catch (const InvalidArgument& error) {
    return give_up_server(error.what());
  }
  has_logged_in_ = has_logged_in_ || is_served;
  logs_in_ = !is_served;
  loop_.unwatch(socket_.get());
  socket_.reset();
  try_address();
}

void EtcdClient::give_up_address(const std::string& reason) {
  if (socket_) loop_.unwatch(socket_.get());
  socket_.reset();
  if (++next_address_ < addresses_.size()) return try_address();
  give_up_server(reason);
}

void EtcdClient::give_up_server(const std::string& reason) {
  disconnect();
  failures_ += concat(failures_.empty() ? "" : "; ", server().to_string(), ": ", reason);
  server_ = (server_ + 1) % servers_.size();
  ++tried_;
  try_server();
}

void EtcdClient::disconnect() {
  loop_.cancel(deadline_);
  lookup_.reset();
  if (socket_) loop_.unwatch(socket_.get());
  socket_.reset();
}

void EtcdClient::finish(std::optional<std::string> body) {
  disconnect();
  const Done done = std::exchange(done_, {});
  done(std::move(body), failures_);
}

}  // namespace lockstep
