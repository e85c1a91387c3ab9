#include "rpc/wire.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace lockstep::rpc {
namespace {

template <typename Number>
void put(std::string& out, Number value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<std::uint32_t>(text.size()));
  out.append(text);
}

[[noreturn]] void bad_frame(const char* what) {
  throw BadMessage(concat("rpc: ", what));
}

std::string_view take_bytes(std::string_view& in, std::size_t bytes) {
  if (in.size() < bytes) bad_frame("a frame is shorter than it says");
  const std::string_view taken = in.substr(0, bytes);
  in.remove_prefix(bytes);
  return taken;
}

template <typename Number>
Number take(std::string_view& in) {
  Number value;
  std::memcpy(&value, take_bytes(in, sizeof(value)).data(), sizeof(value));
  return value;
}

std::string take_text(std::string_view& in, std::size_t limit) {
  const auto size = take<std::uint32_t>(in);
  if (size > limit) bad_frame("a text is too long");
  return std::string(take_bytes(in, size));
}

void expect_end(std::string_view in) {
  if (!in.empty()) bad_frame("a frame is longer than what it carries");
}

}  // namespace

std::uint64_t MessageHead::following_bytes() const {
  std::uint64_t total = payload_bytes;
  for (const BlobPlace& blob : blobs) {
    if (blob.segment == 0) total += blob.bytes;
  }
  return total;
}

std::string frame_header(FrameKind kind, std::size_t content_bytes) {
  std::string out;
  put(out, static_cast<std::uint32_t>(content_bytes));
  put(out, kind);
  return out;
}

std::string encode(const HelloFrame& hello) {
  std::string out;
  put(out, kWireMagic);
  put(out, hello.version);
  put(out, hello.max_calls);
  put_text(out, hello.name);
  return out;
}

HelloFrame decode_hello(std::string_view content) {
  HelloFrame hello;
  if (take<std::uint32_t>(content) != kWireMagic) bad_frame("the peer is no lockstep agent");
  hello.version = take<std::uint16_t>(content);
  if (hello.version != kWireVersion) {
    throw BadMessage(concat("rpc: the peer speaks version ", hello.version, " and this process ",
                            kWireVersion, "; use one lockstep on all machines"));
  }
  hello.max_calls = take<std::uint32_t>(content);
  if (hello.max_calls == 0) bad_frame("the peer takes no calls");
  hello.name = take_text(content, kMaxNameBytes);
  expect_end(content);
  return hello;
}

std::string encode(const MessageHead& head) {
  std::string out;
  put(out, head.id);
  if (head.kind == FrameKind::call) {
    put(out, head.object);
    put(out, head.timeout_ms);
    put_text(out, head.function);
    put_text(out, head.signature);
  }
  put(out, head.payload_bytes);
  put(out, static_cast<std::uint32_t>(head.blobs.size()));
  for (const BlobPlace& blob : head.blobs) {
    put(out, blob.bytes);
    put(out, blob.segment);
    put(out, blob.offset);
  }
  return out;
}

MessageHead decode_head(FrameKind kind, std::string_view& content) {
  MessageHead head;
  head.kind = kind;
  head.id = take<std::uint64_t>(content);
  if (kind == FrameKind::call) {
    head.object = take<std::uint64_t>(content);
    head.timeout_ms = take<std::uint32_t>(content);
    head.function = take_text(content, kMaxNameBytes);
    head.signature = take_text(content, kMaxSignatureBytes);
  }
  head.payload_bytes = take<std::uint64_t>(content);
  const auto count = take<std::uint32_t>(content);
  if (count > kMaxBlobs || count > content.size() / (3 * sizeof(std::uint64_t))) {
    bad_frame("too many blobs");
  }
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 46;  // no sum of these overflows
  if (head.payload_bytes > kHuge) bad_frame("the values are too large");
  head.blobs.resize(count);
  for (BlobPlace& blob : head.blobs) {
    blob.bytes = take<std::uint64_t>(content);
    blob.segment = take<std::uint64_t>(content);
    blob.offset = take<std::uint64_t>(content);
    if (blob.bytes > kHuge || blob.offset > kHuge) bad_frame("a blob is too large");
  }
  return head;
}

std::string encode(const FailureFrame& failure) {
  std::string out;
  put(out, failure.id);
  put(out, failure.failure.kind);
  put_text(out, std::string_view(failure.failure.detail).substr(0, kMaxFailureText));
  put_text(out, std::string_view(failure.failure.message).substr(0, kMaxFailureText));
  return out;
}

FailureFrame decode_failure(std::string_view content) {
  FailureFrame result;
  result.id = take<std::uint64_t>(content);
  const auto kind = take<std::uint8_t>(content);
  if (kind < 1 || kind > static_cast<std::uint8_t>(FailureKind::timeout)) {
    bad_frame("a failure of an unknown kind");
  }
  result.failure.kind = static_cast<FailureKind>(kind);
  result.failure.detail = take_text(content, kMaxFailureText);
  result.failure.message = take_text(content, kMaxFailureText);
  expect_end(content);
  return result;
}

std::string encode(const SegmentFrame& segment) {
  return encode_number(segment.id) + encode_number(segment.bytes);
}

SegmentFrame decode_segment(std::string_view content) {
  SegmentFrame segment;
  segment.id = take<std::uint64_t>(content);
  segment.bytes = take<std::uint64_t>(content);
  expect_end(content);
  return segment;
}

std::string encode_number(std::uint64_t number) {
  std::string out;
  put(out, number);
  return out;
}

std::uint64_t decode_number(std::string_view content) {
  const auto number = take<std::uint64_t>(content);
  expect_end(content);
  return number;
}

}  // namespace lockstep::rpc
