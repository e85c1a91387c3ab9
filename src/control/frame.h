#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// The longest payload of a frame, unless a decoder is told less.
inline constexpr std::size_t kMaxFrameBytes = 4 << 20;

/// A payload with its length before it: four bytes, little-endian. Throws InvalidArgument if it is
/// longer than kMaxFrameBytes.
std::string encode_frame(std::string_view payload);

/// Cuts a stream of bytes into the payloads of frames. It owns no descriptor and never waits.
///
/// Each byte is looked at once, however the stream is cut into pieces. Memory follows what has
/// arrived, not what a length announces, and stays below twice the limit.
class FrameDecoder {
 public:
  explicit FrameDecoder(std::size_t limit = kMaxFrameBytes) : limit_(limit) {}

  /// Takes bytes off the front of `bytes` up to the end of a frame and returns its payload. Returns
  /// std::nullopt once `bytes` is empty and the frame at hand is not complete.
  ///
  /// Throws InvalidArgument if a frame announces more than the limit. Nothing after that can be
  /// told apart any more: the stream must be given up.
  std::optional<std::string> next(std::string_view& bytes);

  /// Another limit, from the next frame on.
  void set_limit(std::size_t limit) { limit_ = limit; }

  /// Whether the stream stands between two frames.
  bool at_boundary() const { return header_bytes_ == 0; }

 private:
  void take_header(std::string_view& bytes);

  std::size_t limit_;
  std::size_t header_bytes_ = 0;  // of the four, how many have come
  std::uint32_t length_ = 0;
  std::string payload_;
};

}  // namespace lockstep
