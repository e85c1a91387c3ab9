#include "launch/link_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "launch/link_socket.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDrainTimeout{2000};
constexpr std::size_t kReadBytes = 64 << 10;
constexpr int kReadsPerRound = 4;  // then the other descriptors of the loop have their turn

std::string in_seconds(milliseconds time) {
  return concat(time.count() / 1000.0, " s");
}

}  // namespace

std::shared_ptr<LinkConnection> LinkConnection::start(EventLoop& loop, UniqueFd socket,
                                                      LinkSessionOptions session,
                                                      const LinkLimits& limits, Events events) {
  std::shared_ptr<LinkConnection> connection(
      new LinkConnection(loop, std::move(socket), std::move(session), limits, std::move(events)));
  connection->watch();
  return connection;
}

LinkConnection::LinkConnection(EventLoop& loop, UniqueFd socket, LinkSessionOptions session,
                               const LinkLimits& limits, Events events)
    : loop_(loop),
      socket_(std::move(socket)),
      session_(std::move(session)),
      limits_(limits),
      events_(std::make_shared<Events>(std::move(events))),
      peer_address_(lockstep::peer_address(socket_.get())),
      local_address_(lockstep::local_address(socket_.get())) {
  prepare_link_socket(socket_.get(), limits_.dead_peer_timeout);
}

void LinkConnection::watch() {
  loop_.watch(socket_.get(), EPOLLIN,
              [self = shared_from_this()](std::uint32_t events) { self->on_ready(events); });
  deadline_ = call_after(limits_.handshake_timeout, &LinkConnection::on_handshake_timeout);
  queue(session_.start());
}

EventLoop::TimerId LinkConnection::call_after(milliseconds delay, void (LinkConnection::*due)()) {
  return loop_.after(delay, [weak = weak_from_this(), due] {
    if (const auto self = weak.lock()) (self.get()->*due)();
  });
}

void LinkConnection::on_ready(std::uint32_t events) {
  const auto self = shared_from_this();  // whatever the owner does in an event
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read();
  if (state_ != State::closed && (events & EPOLLOUT)) flush();
}

void LinkConnection::read() {
  std::array<char, kReadBytes> buffer;
  for (int round = 0; round < kReadsPerRound && state_ != State::closed; ++round) {
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    left_ = got <= 0;
    if (got < 0) return fail(concat("the connection broke: ", std::strerror(errno)));
    if (got == 0) {
      return fail(session_.established() ? "the peer closed the connection"
                                         : "the peer closed the connection in the handshake");
    }
    // While draining, bytes are taken only so that closing does not throw away what was sent.
    if (state_ == State::open) {
      deliver(session_.receive({buffer.data(), static_cast<std::size_t>(got)}));
    }
  }
}

void LinkConnection::deliver(LinkSession::Result result) {
  const auto events = events_;
  tampered_ = tampered_ || result.tampered;
  const bool opens = result.established && deadline_ != EventLoop::TimerId{};
  if (!result.send.empty()) queue(std::move(result.send));
  if (opens) {
    loop_.cancel(std::exchange(deadline_, {}));
    events->opened();
  }
  for (std::string& message : result.messages) {
    if (state_ != State::open) return;
    events->message(std::move(message));
  }
  if (!result.closed_because || state_ != State::open) return;
  drain();
  events->closed(*result.closed_because);
}

void LinkConnection::send(std::string_view message) {
  if (open()) queue(session_.seal(message));
}

void LinkConnection::queue(std::string bytes) {
  if (bytes.empty()) return;
  if (output_.empty()) last_progress_ = EventLoop::Clock::now();
  queued_bytes_ += bytes.size();
  output_.push_back(std::move(bytes));
  if (queued_bytes_ > limits_.max_queued_bytes) {
    call_after(milliseconds(0), &LinkConnection::on_overflow);
    return;
  }
  flush();
}

void LinkConnection::flush() {
  while (!output_.empty()) {
    const std::string_view rest = std::string_view(output_.front()).substr(output_offset_);
    const ssize_t sent = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    // Whatever broke the connection will be read from it, by the loop.
    if (sent < 0 && errno != EINTR) break;
    if (sent <= 0) continue;
    last_progress_ = EventLoop::Clock::now();
    queued_bytes_ -= static_cast<std::size_t>(sent);
    output_offset_ += static_cast<std::size_t>(sent);
    if (output_offset_ == output_.front().size()) {
      output_.pop_front();
      output_offset_ = 0;
    }
  }
  if (output_.empty() && state_ == State::draining) ::shutdown(socket_.get(), SHUT_WR);
  update_interest();
}

void LinkConnection::update_interest() {
  if (wants_output_ == output_.empty()) {
    wants_output_ = !output_.empty();
    if (!wants_output_) call_after(milliseconds(0), &LinkConnection::on_drained);
    loop_.change(socket_.get(), wants_output_ ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
  if (wants_output_ && !stall_timer_) {
    stall_timer_ = call_after(limits_.stall_timeout, &LinkConnection::watch_for_stall);
  }
}

void LinkConnection::watch_for_stall() {
  stall_timer_.reset();
  if (output_.empty() || state_ == State::closed) return;
  const auto idle = EventLoop::Clock::now() - last_progress_;
  if (idle >= limits_.stall_timeout) {
    fail(concat("the peer took nothing for ", in_seconds(limits_.stall_timeout), "; ",
                queued_bytes_, " bytes were waiting for it"));
  } else {
    const auto left = std::chrono::ceil<milliseconds>(limits_.stall_timeout - idle);
    stall_timer_ = call_after(left, &LinkConnection::watch_for_stall);
  }
}

void LinkConnection::on_handshake_timeout() {
  fail(concat("the peer did not finish the handshake in ", in_seconds(limits_.handshake_timeout)));
}

void LinkConnection::on_overflow() {
  fail(concat("the peer reads too slowly: ", queued_bytes_, " bytes were waiting for it, ",
              limits_.max_queued_bytes, " may"));
}

void LinkConnection::on_drained() {
  const auto events = events_;
  if (open() && !silent_ && events->drained) events->drained();
}

void LinkConnection::close() {
  silent_ = true;
  if (state_ == State::open) drain();
}

void LinkConnection::abandon() {
  silent_ = true;
  shut();
}

void LinkConnection::drain() {
  state_ = State::draining;
  loop_.cancel(deadline_);
  deadline_ = call_after(kDrainTimeout, &LinkConnection::shut);
  flush();
}

void LinkConnection::fail(const std::string& reason) {
  const bool tell = state_ == State::open && !silent_;
  const auto events = events_;
  shut();
  if (tell) events->closed(reason);
}

void LinkConnection::shut() {
  if (state_ == State::closed) return;
  const auto self = shared_from_this();  // the loop may have held the last one
  state_ = State::closed;
  loop_.cancel(deadline_);
  if (stall_timer_) loop_.cancel(*stall_timer_);
  loop_.unwatch(socket_.get());
  socket_.reset();
  output_.clear();
  queued_bytes_ = 0;
}

}  // namespace lockstep
