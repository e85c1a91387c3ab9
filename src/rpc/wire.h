#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/rpc_error.h"

/// Frames between two agents, as bytes. docs/rpc.md has the same in words.
namespace lockstep::rpc {

inline constexpr std::uint32_t kWireMagic = 0x50524b4c;  // "LKRP"
inline constexpr std::uint16_t kWireVersion = 1;
inline constexpr std::size_t kFrameHeaderBytes = 5;  // length of the content, kind
inline constexpr std::size_t kMaxContentBytes = 1 << 20;
inline constexpr std::size_t kPieceBytes = 256 << 10;  // of a large message, between others
inline constexpr std::size_t kInlineBytes = 64 << 10;  // messages up to this size are one frame
inline constexpr std::size_t kMaxNameBytes = 200;      // of agents, functions and classes
inline constexpr std::size_t kMaxSignatureBytes = 4096;
inline constexpr std::size_t kMaxBlobs = 16384;
inline constexpr std::size_t kMaxFailureText = 16 << 10;
inline constexpr std::uint64_t kNewObject = ~std::uint64_t{0};  // instead of an object's number

enum class FrameKind : std::uint8_t {
  hello = 1,
  call,
  answer,
  failure,
  piece,
  segment,
  release,
  forget,
  drop_object,
  goodbye,
};

struct HelloFrame {
  std::uint16_t version = kWireVersion;
  std::uint32_t max_calls = 0;
  std::string name;
};

/// Where a blob's bytes are: in what follows, or in memory that both ends have mapped.
struct BlobPlace {
  std::uint64_t bytes = 0;
  std::uint64_t segment = 0;  // 0: they follow
  std::uint64_t offset = 0;
};

/// The front of a call or an answer. Its `payload_bytes` and then its blobs follow, in the rest of
/// the frame and in pieces.
struct MessageHead {
  FrameKind kind = FrameKind::call;
  std::uint64_t id = 0;
  std::uint64_t object = 0;      // calls only, as the next three
  std::uint32_t timeout_ms = 0;  // what is left of the caller's patience
  std::string function;
  std::string signature;
  std::uint64_t payload_bytes = 0;
  std::vector<BlobPlace> blobs;

  /// Of what follows.
  std::uint64_t following_bytes() const;
};

struct FailureFrame {
  std::uint64_t id = 0;
  Failure failure;
};

struct SegmentFrame {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
};

/// Contents of frames as bytes; frame_header() goes before them.
std::string frame_header(FrameKind kind, std::size_t content_bytes);
std::string encode(const HelloFrame& hello);
std::string encode(const MessageHead& head);
std::string encode(const FailureFrame& failure);
std::string encode(const SegmentFrame& segment);
std::string encode_number(std::uint64_t number);  // release, forget, drop_object, start of a piece

/// And back. All throw BadMessage for what is none.
HelloFrame decode_hello(std::string_view content);
/// Leaves the bytes after the head in `content`.
MessageHead decode_head(FrameKind kind, std::string_view& content);
FailureFrame decode_failure(std::string_view content);
SegmentFrame decode_segment(std::string_view content);
std::uint64_t decode_number(std::string_view content);

}  // namespace lockstep::rpc
