#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/rpc_codec.h"
#include "rpc/wire.h"

namespace lockstep::rpc {

/// A call or an answer that is complete.
struct Received {
  MessageHead head;
  Payload payload;
};

/// Makes messages of the frames that come over one connection. Sans-IO; not thread-safe.
///
/// Everything throws BadMessage for what a peer must not send. Nothing after that can be told apart
/// any more: the connection must be given up.
class Inbox {
 public:
  struct Limits {
    std::size_t message_bytes = std::size_t{4} << 30;
    std::size_t partial_bytes = std::size_t{8} << 30;  // of all messages that are not complete yet
  };

  /// What the frames say.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_hello(const HelloFrame& hello) = 0;
    /// False: nobody waits for it any more, so its bytes are thrown away as they come.
    virtual bool wants(const MessageHead& head) = 0;
    /// And that was the last of them.
    virtual void on_unwanted(std::uint64_t) {}
    /// Memory of a segment that the peer has announced.
    virtual Blob shared_blob(const BlobPlace& place) = 0;
    virtual void on_message(Received message) = 0;
    virtual void on_failure(FailureFrame failure) = 0;
    virtual void on_segment(const SegmentFrame& segment) = 0;
    virtual void on_release(std::uint64_t segment) = 0;
    virtual void on_forget(std::uint64_t segment) = 0;
    virtual void on_drop_object(std::uint64_t object) = 0;
    virtual void on_goodbye() = 0;
  };

  Inbox(Limits limits, Listener& listener) : limits_(limits), listener_(listener) {}

  /// A whole frame.
  void frame(FrameKind kind, std::string_view content);

  /// For pieces that are read straight to their place: where the next bytes of a message go, at
  /// most `bytes` of them, and that so many are there.
  std::span<std::byte> piece_target(std::uint64_t id, std::size_t bytes);
  void piece_filled(std::uint64_t id, std::size_t bytes);

 private:
  struct Partial {
    Received message;
    bool wanted = true;
    std::vector<std::span<std::byte>> targets;  // what is still to come
    std::size_t target = 0;
    std::uint64_t missing = 0;
  };

  void start_message(FrameKind kind, std::string_view content);
  void take_bytes(std::uint64_t id, std::string_view bytes);
  Partial& find(std::uint64_t id);

  Limits limits_;
  Listener& listener_;
  bool greeted_ = false;
  std::map<std::uint64_t, Partial> partial_;
  std::uint64_t partial_bytes_ = 0;
  std::vector<std::byte> waste_;
};

/// Cuts a stream of bytes into frames for an Inbox, with the bytes of large messages read to where
/// they belong. Not thread-safe.
class FrameStream {
 public:
  explicit FrameStream(Inbox& inbox) : inbox_(inbox) {}

  /// Where to read bytes to; never empty.
  std::span<std::byte> target();
  /// That so many were read there. Throws as the inbox does.
  void filled(std::size_t bytes);

 private:
  bool parse_one();

  Inbox& inbox_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kInlineBytes + 4096);
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::uint64_t piece_id_ = 0;
  std::size_t piece_left_ = 0;
  bool direct_ = false;  // the last target was memory of a message
};

}  // namespace lockstep::rpc
