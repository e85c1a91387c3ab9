#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "control/link_session.h"
#include "core/unique_fd.h"
#include "launch/event_loop.h"

namespace lockstep {

/// What a link bears with before it is given up.
struct LinkLimits {
  std::chrono::milliseconds handshake_timeout{5000};   // until the peer has proven itself
  std::chrono::milliseconds stall_timeout{15000};      // the peer takes nothing of what waits
  std::chrono::milliseconds dead_peer_timeout{10000};  // the peer's machine answers nothing
  std::size_t max_queued_bytes = 64 << 20;             // what may wait for one peer
};

/// A connected socket with a session on it, on an event loop: what LinkServer and LinkClient share.
///
/// While it is open the loop keeps it alive. Events come from the loop, never from within one of
/// the functions below. The loop must outlive it.
class LinkConnection : public std::enable_shared_from_this<LinkConnection> {
 public:
  struct Events {
    std::function<void()> opened;
    std::function<void(std::string message)> message;
    std::function<void(const std::string& reason)> closed;  // once, and the last
    std::function<void()> drained = {};  // what was queued and could not be sent at once has gone
  };

  static std::shared_ptr<LinkConnection> start(EventLoop& loop, UniqueFd socket,
                                               LinkSessionOptions session, const LinkLimits& limits,
                                               Events events);

  /// Whether messages can be sent.
  bool open() const { return state_ == State::open && session_.established(); }

  /// Queues a message. A connection that is not open takes it and loses it, as one that breaks
  /// would. Throws InvalidArgument if it is longer than LinkSession::kMaxMessageBytes.
  void send(std::string_view message);

  /// Sends what is queued, then closes; gives up after two seconds. No events come any more.
  void close();

  /// Closes at once, with no events any more.
  void abandon();

  std::size_t queued_bytes() const { return queued_bytes_; }
  const std::string& peer_address() const { return peer_address_; }
  const std::string& local_address() const { return local_address_; }
  /// Whether it was closed because of bytes that its peer cannot have sent.
  bool tampered() const { return tampered_; }
  /// Whether it was closed because the peer has closed its end, or the network has.
  bool left() const { return left_; }

 private:
  enum class State { open, draining, closed };

  LinkConnection(EventLoop& loop, UniqueFd socket, LinkSessionOptions session,
                 const LinkLimits& limits, Events events);

  void watch();
  void on_ready(std::uint32_t events);
  void read();
  void deliver(LinkSession::Result result);
  void queue(std::string bytes);
  void flush();
  void update_interest();
  void watch_for_stall();
  void drain();
  void fail(const std::string& reason);
  void shut();
  EventLoop::TimerId call_after(std::chrono::milliseconds delay, void (LinkConnection::*due)());
  void on_handshake_timeout();
  void on_overflow();
  void on_drained();

  EventLoop& loop_;
  UniqueFd socket_;
  LinkSession session_;
  LinkLimits limits_;
  std::shared_ptr<const Events> events_;  // one may run while this object is let go
  State state_ = State::open;
  std::string peer_address_;
  std::string local_address_;

  std::deque<std::string> output_;
  std::size_t output_offset_ = 0;  // of the first piece, what is sent already
  std::size_t queued_bytes_ = 0;
  bool wants_output_ = false;
  bool silent_ = false;  // the owner wants no more events
  bool tampered_ = false;
  bool left_ = false;
  EventLoop::Clock::time_point last_progress_;
  EventLoop::TimerId deadline_{};  // of the handshake, then of draining
  std::optional<EventLoop::TimerId> stall_timer_;
};

}  // namespace lockstep
