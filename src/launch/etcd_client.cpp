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

EtcdClient::EtcdClient(EventLoop& loop, std::vector<Endpoint> servers,
                       std::chrono::milliseconds patience)
    : loop_(loop), servers_(std::move(servers)), patience_(patience) {}

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
  output_ = concat("POST ", request_.path, " HTTP/1.1\r\nHost: ", server().to_string(),
                   "\r\nContent-Type: application/json\r\nContent-Length: ", request_.body.size(),
                   "\r\nConnection: close\r\n\r\n", request_.body);
  loop_.watch(socket_.get(), EPOLLOUT,
              [this](std::uint32_t) { output_.empty() ? on_readable() : on_writable(); });
}

void EtcdClient::on_writable() {
  if (!std::exchange(connected_, true)) {
    if (const int error = connect_error(socket_.get())) {
      if (error == ECONNREFUSED) reach_ = std::max(reach_, Reach::refused);
      return give_up_address(std::strerror(error));
    }
  }
  reach_ = Reach::heard;
  const ssize_t sent = ::send(socket_.get(), output_.data(), output_.size(), MSG_NOSIGNAL);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) return give_up_server(std::strerror(errno));
  if (sent > 0) output_.erase(0, static_cast<std::size_t>(sent));
  if (output_.empty()) loop_.change(socket_.get(), EPOLLIN);
}

void EtcdClient::on_readable() {
  std::array<char, 16384> buffer;
  const ssize_t size = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size < 0) return give_up_server(std::strerror(errno));
  try {
    if (size == 0) {
      response_.take_end();
    } else {
      response_.take({buffer.data(), static_cast<std::size_t>(size)});
    }
  } catch (const InvalidArgument& error) {
    return give_up_server(error.what());
  }
  if (!response_.complete()) return;
  if (response_.status() != 200) {
    return give_up_server(read_error(response_.status(), response_.body()));
  }
  finish(response_.body());
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
