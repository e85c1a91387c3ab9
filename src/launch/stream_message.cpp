#include "launch/stream_message.h"

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kHeadBytes = 1 + 8;

void append_number(std::string& text, std::uint64_t value) {
  for (int shift = 56; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift & 0xff);
}

std::uint64_t number_at(std::string_view text, std::size_t offset) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    value = value << 8 | static_cast<unsigned char>(text[offset + i]);
  }
  return value;
}

bool has_number(StreamMessage::Kind kind) {
  return kind == StreamMessage::Kind::open || kind == StreamMessage::Kind::taken;
}

}  // namespace

std::string encode(const StreamMessage& message) {
  LOCKSTEP_CHECK(message.bytes.size() <= kStreamMessageBytes, message.bytes.size());
  std::string text;
  text.reserve(kHeadBytes + 8 + message.bytes.size());
  text += static_cast<char>(message.kind);
  append_number(text, message.stream);
  if (has_number(message.kind)) append_number(text, message.number);
  return text.append(message.bytes);
}

StreamMessage decode_stream_message(std::string_view text) {
  if (text.size() < kHeadBytes) throw InvalidArgument("a piece of a stream is cut short");
  const auto kind = static_cast<StreamMessage::Kind>(text[0]);
  if (kind < StreamMessage::Kind::open || kind > StreamMessage::Kind::taken) {
    throw InvalidArgument(
        concat("a piece of a stream is of an unknown kind ", static_cast<int>(kind)));
  }
  StreamMessage message{.kind = kind, .stream = number_at(text, 1), .number = 0, .bytes = {}};
  std::string_view rest = text.substr(kHeadBytes);
  if (has_number(kind)) {
    if (rest.size() < 8) throw InvalidArgument("a piece of a stream is cut short");
    message.number = number_at(rest, 0);
    rest.remove_prefix(8);
  }
  const bool fits = kind == StreamMessage::Kind::data
                        ? !rest.empty() && rest.size() <= kStreamMessageBytes
                        : rest.empty();
  if (!fits) {
    throw InvalidArgument(concat("a piece of a stream has ", rest.size(),
                                 " bytes, which one of its kind cannot have"));
  }
  message.bytes = rest;
  return message;
}

}  // namespace lockstep
