#include "launch/store_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <cerrno>
#include <utility>

namespace lockstep {
namespace {

constexpr std::size_t kBytesPerRead = 64 * 1024;
constexpr std::size_t kKeptOutputBytes = 64 * 1024;

void set_option(int socket, int level, int name, int value) {
  ::setsockopt(socket, level, name, &value, sizeof(value));
}

}  // namespace

StoreConnection::StoreConnection(UniqueFd socket, StorePeer peer)
    : last_request(std::chrono::steady_clock::now()), socket_(std::move(socket)), peer_(peer) {
  // A machine that vanished is noticed after two minutes. There is no limit on the time that data
  // may stay unread: a worker that stands in a debugger reads nothing for a long while.
  set_option(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket_.get(), IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set_option(socket_.get(), IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(socket_.get(), IPPROTO_TCP, TCP_KEEPCNT, 6);
  set_option(socket_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
}

bool StoreConnection::receive() {
  char bytes[kBytesPerRead];
  const ssize_t count = ::recv(socket_.get(), bytes, sizeof(bytes), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  scanner_.feed({bytes, static_cast<std::size_t>(count)});
  return true;
}

bool StoreConnection::send() {
  while (sent_ < output_.size()) {
    const ssize_t count =
        ::send(socket_.get(), output_.data() + sent_, output_.size() - sent_, MSG_NOSIGNAL);
    if (count > 0) {
      sent_ += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
  output_.clear();
  sent_ = 0;
  if (output_.capacity() > kKeptOutputBytes) output_.shrink_to_fit();
  return true;
}

}  // namespace lockstep
