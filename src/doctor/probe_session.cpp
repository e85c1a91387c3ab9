#include "doctor/probe_session.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/hmac.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

// Not a job's: a launcher that is met at an endpoint says so, instead of taking a doctor for a
// node.
constexpr const char* kProtocol = "lockstep-doctor-probe";

}  // namespace

ProbeSession::ProbeSession(UniqueFd socket, LinkRole role, const ProbeTrust& trust,
                           Clock::time_point deadline)
    : socket_(std::move(socket)),
      session_({.role = role,
                .secret = trust.secret,
                .tls = trust.tls,
                .run_id = kProtocol,
                .nonce = random_bytes(kLinkNonceBytes)}) {
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  write_all(session_.start(), deadline);
  while (!session_.established()) read_some(deadline);
}

void ProbeSession::await(short events, Clock::time_point deadline) const {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd waiting{.fd = socket_.get(), .events = events, .revents = 0};
    if (left.count() <= 0) throw SystemError("no answer in time");
    if (::poll(&waiting, 1, static_cast<int>(left.count())) > 0) return;
  }
}

void ProbeSession::write_all(std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      await(POLLOUT, deadline);
    } else if (errno != EINTR) {
      throw SystemError(std::strerror(errno));
    }
  }
}

void ProbeSession::read_some(Clock::time_point deadline) {
  std::array<char, 4096> buffer;
  const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
  if (got < 0 && errno == EAGAIN) return await(POLLIN, deadline);
  if (got < 0 && errno == EINTR) return;
  if (got < 0) throw SystemError(std::strerror(errno));
  if (got == 0) throw SystemError("the other end closed the connection");
  auto result = session_.receive({buffer.data(), static_cast<std::size_t>(got)});
  if (!result.send.empty()) write_all(result.send, deadline);
  if (result.closed_because) throw SystemError(*result.closed_because);
  for (std::string& message : result.messages) messages_.push_back(std::move(message));
}

void ProbeSession::send(std::string_view message, Clock::time_point deadline) {
  write_all(session_.seal(message), deadline);
}

std::string ProbeSession::receive(Clock::time_point deadline) {
  while (messages_.empty()) read_some(deadline);
  std::string message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

void ProbeSession::send_raw(std::size_t bytes, Clock::time_point deadline) {
  const std::string piece(std::min(bytes, kPieceBytes), 'x');
  while (bytes > 0) {
    const std::size_t now = std::min(bytes, piece.size());
    write_all(std::string_view(piece).substr(0, now), deadline);
    bytes -= now;
  }
}

void ProbeSession::receive_raw(std::size_t bytes, Clock::time_point deadline) {
  std::vector<char> buffer(kPieceBytes);
  while (bytes > 0) {
    const ssize_t got = ::recv(socket_.get(), buffer.data(), std::min(bytes, buffer.size()), 0);
    if (got > 0) {
      bytes -= static_cast<std::size_t>(got);
    } else if (got == 0) {
      throw SystemError("the other end closed the connection");
    } else if (errno == EAGAIN) {
      await(POLLIN, deadline);
    } else if (errno != EINTR) {
      throw SystemError(std::strerror(errno));
    }
  }
}

}  // namespace lockstep
