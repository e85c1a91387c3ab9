#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

/// A piece of a byte stream that travels over a link, beside the messages of messages.h.
struct StreamMessage {
  enum class Kind : unsigned char {
    open = 1,   // a stream begins; `number` is the epoch it belongs to
    data = 2,   // its bytes
    end = 3,    // no bytes follow from this side
    reset = 4,  // the stream is over at once, both ways
    taken = 5,  // `number` bytes have reached the other side's socket: as many more may be sent
  };

  Kind kind = Kind::data;
  std::uint64_t stream = 0;  // chosen by who opens it; never used twice on one link
  std::uint64_t number = 0;
  std::string_view bytes;  // of whatever was decoded

  bool operator==(const StreamMessage&) const = default;
};

/// The most bytes of one message: little enough that heartbeats do not wait for long behind it.
inline constexpr std::size_t kStreamMessageBytes = 64 << 10;

/// What tells these from JSON, which begins with a brace.
inline bool is_stream_message(std::string_view message) {
  return !message.empty() && static_cast<unsigned char>(message[0]) < ' ';
}

std::string encode(const StreamMessage& message);

/// Throws InvalidArgument for everything that encode() could not have made.
StreamMessage decode_stream_message(std::string_view text);

}  // namespace lockstep
