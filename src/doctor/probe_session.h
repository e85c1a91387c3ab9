#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <string_view>

#include "control/link_session.h"
#include "core/unique_fd.h"

namespace lockstep {

/// What both ends must have been told alike.
struct ProbeTrust {
  std::string secret;  // empty: --insecure
  bool tls = false;    // messages are encrypted; the bytes by which ways are measured mean nothing
};

/// One end of a connection between two nodes that measure the way between them: proves both ends
/// as every link does, exchanges short messages, and lets raw bytes pass where both have agreed how
/// many. Blocks, up to deadlines. Every function throws SystemError when the time is over or the
/// connection breaks. Not thread-safe.
class ProbeSession {
 public:
  using Clock = std::chrono::steady_clock;

  /// Shakes hands. The socket is connected and does not block.
  ProbeSession(UniqueFd socket, LinkRole role, const ProbeTrust& trust, Clock::time_point deadline);

  void send(std::string_view message, Clock::time_point deadline);
  std::string receive(Clock::time_point deadline);

  void send_raw(std::size_t bytes, Clock::time_point deadline);
  void receive_raw(std::size_t bytes, Clock::time_point deadline);

  int fd() const { return socket_.get(); }

 private:
  void write_all(std::string_view bytes, Clock::time_point deadline);
  void read_some(Clock::time_point deadline);
  void await(short events, Clock::time_point deadline) const;

  UniqueFd socket_;
  LinkSession session_;
  std::deque<std::string> messages_;
};

}  // namespace lockstep
