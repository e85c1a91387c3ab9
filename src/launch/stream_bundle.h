#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/unique_fd.h"
#include "launch/event_loop.h"
#include "launch/stream_message.h"

namespace lockstep {

/// One end of a link's byte streams: each stream has a socket here and one at the other end, and
/// what one socket's peer writes the other's reads.
///
/// Memory is bounded and nobody waits for a slow reader but whoever writes to it: of each stream at
/// most kWindowBytes are on their way in each direction, and sockets are not read while more than
/// kLinkBytes wait for the link, so that other messages pass. Not thread-safe; never blocks. The
/// loop must outlive it.
class StreamBundle {
 public:
  struct Callbacks {
    std::function<void(std::string message)> send;  // to the other end of the link
    std::function<std::size_t()> queued_bytes;      // what waits for the link
    /// A socket, which does not block, for a stream that the other end opened; none: it is refused.
    /// Unset: the other end may open none.
    std::function<UniqueFd(std::uint64_t epoch)> connect;
  };

  static constexpr std::size_t kWindowBytes = 256 << 10;
  static constexpr std::size_t kLinkBytes = 1 << 20;
  static constexpr std::size_t kMaxStreams = 1 << 16;

  StreamBundle(EventLoop& loop, Callbacks callbacks);
  ~StreamBundle();
  StreamBundle(const StreamBundle&) = delete;
  StreamBundle& operator=(const StreamBundle&) = delete;

  /// Opens a stream for a socket, which must not block.
  void add(UniqueFd socket, std::uint64_t epoch);

  /// What the other end sent. Throws InvalidArgument for what it must not send.
  void on_message(std::string_view message);

  /// Less waits for the link than before.
  void on_drained();

  /// Closes all sockets. The other end is told, unless the link is gone.
  void close_all(bool tell);

  std::size_t size() const { return streams_.size(); }

 private:
  struct Stream {
    UniqueFd socket;
    std::uint32_t watched = 0;            // epoll events; 0: not in the loop
    std::string to_socket;                // from the other end
    std::size_t written = 0;              // of to_socket
    std::size_t may_send = kWindowBytes;  // to the other end
    std::size_t untold = 0;  // bytes that the socket took and the other end has not heard
    bool read_all = false;   // the socket's peer writes no more
    bool heard_all = false;  // the other end sends no more
  };
  using Streams = std::map<std::uint64_t, std::unique_ptr<Stream>>;

  void adopt(std::uint64_t id, UniqueFd socket);
  void on_open(const StreamMessage& message);
  void on_data(Stream& stream, const StreamMessage& message);
  void on_ready(std::uint64_t id, std::uint32_t events);
  /// These return false when the socket is broken.
  bool read(std::uint64_t id, Stream& stream);
  bool write(std::uint64_t id, Stream& stream);
  /// Goes on with a stream, or removes it: where it broke, and where both directions have ended.
  void settle(std::uint64_t id, Stream& stream, bool intact);
  void watch(std::uint64_t id, Stream& stream);
  void remove(Streams::iterator stream);
  bool may_read(const Stream& stream) const;
  void send(StreamMessage::Kind kind, std::uint64_t id, std::uint64_t number = 0,
            std::string_view bytes = {});

  EventLoop& loop_;
  Callbacks callbacks_;
  Streams streams_;
  std::uint64_t last_id_ = 0;
};

}  // namespace lockstep
