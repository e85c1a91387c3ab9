#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/rpc_codec.h"
#include "rpc/segment.h"
#include "rpc/wire.h"

namespace lockstep::rpc {

/// What is to be sent over one connection, in an order that lets small messages pass large ones:
/// those are cut into pieces which take turns. Not thread-safe.
class Outbox {
 public:
  using Seal = std::function<std::string(std::string_view frame)>;

  /// From now on each frame goes through this.
  void set_seal(Seal seal) { seal_ = std::move(seal); }

  /// The descriptor of `segment` goes with it.
  void push(FrameKind kind, std::string_view content, std::shared_ptr<Segment> segment = nullptr);
  /// The payload's blobs that `head` has a segment for are not sent; their owners are none of ours.
  void push_message(const MessageHead& head, Payload payload);
  /// Bytes that are no frame: those of a handshake.
  void push_raw(std::string bytes);

  bool empty() const { return ready_.empty() && streams_.empty(); }
  std::size_t bytes() const { return bytes_; }

  /// What to write next, at most `limit` pieces of memory; `descriptor` is to be sent with the
  /// first byte, or -1. Valid until the next call of anything.
  std::vector<iovec> next(std::size_t limit, int* descriptor);
  void written(std::size_t bytes);

  /// Answers and failures whose last byte was written since this was asked last.
  int take_answers_written() { return std::exchange(answers_written_, 0); }

  /// What need not be kept any more. Letting go of it may lead back here, so that callers do it
  /// when they hold no lock.
  std::vector<std::shared_ptr<void>> take_spent() { return std::exchange(spent_, {}); }

 private:
  struct Frame {
    std::string bytes;
    Blob blob;                         // after them
    std::shared_ptr<Segment> segment;  // whose descriptor goes with them
    bool ends_answer = false;
    std::size_t size() const { return bytes.size() + blob.bytes; }
  };
  struct Stream {
    std::uint64_t id = 0;
    bool answer = false;
    std::deque<Blob> blobs;
  };

  void add(Frame frame);
  void cut_piece();
  void spend(Blob& blob);

  Seal seal_;
  std::deque<Frame> ready_;
  std::size_t sent_ = 0;  // of the first of them
  std::deque<Stream> streams_;
  std::size_t bytes_ = 0;
  int answers_written_ = 0;
  std::vector<std::shared_ptr<void>> spent_;
};

}  // namespace lockstep::rpc
