#include "control/link_handshake.h"

#include <algorithm>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kMagic = "LOCKSTEP";
constexpr std::size_t kMaxReasonBytes = 512;
constexpr unsigned char kHasSecret = 1;
constexpr unsigned char kTls = 2;

void put_u16(std::string& bytes, std::uint16_t value) {
  bytes.push_back(static_cast<char>(value & 0xff));
  bytes.push_back(static_cast<char>(value >> 8));
}

std::string_view take(std::string_view& bytes, std::size_t count) {
  if (bytes.size() < count) {
    throw InvalidArgument("the peer's first message is cut off");
  }
  const std::string_view front = bytes.substr(0, count);
  bytes.remove_prefix(count);
  return front;
}

std::uint16_t take_u16(std::string_view& bytes) {
  const std::string_view two = take(bytes, 2);
  return static_cast<std::uint16_t>(static_cast<unsigned char>(two[0]) |
                                    static_cast<unsigned char>(two[1]) << 8);
}

}  // namespace

std::string encode_hello(HandshakeKind kind, const LinkHello& hello) {
  std::string bytes(1, static_cast<char>(kind));
  bytes += kMagic;
  put_u16(bytes, hello.oldest_version);
  put_u16(bytes, hello.newest_version);
  bytes.push_back(static_cast<char>((hello.has_secret ? kHasSecret : 0) | (hello.tls ? kTls : 0)));
  bytes += hello.nonce;
  if (kind == HandshakeKind::client_hello) {
    put_u16(bytes, static_cast<std::uint16_t>(hello.run_id.size()));
    bytes += hello.run_id;
  }
  return bytes;
}

LinkHello take_hello(HandshakeKind kind, std::string_view& payload) {
  if (static_cast<unsigned char>(take(payload, 1)[0]) != static_cast<unsigned char>(kind) ||
      take(payload, kMagic.size()) != kMagic) {
    throw InvalidArgument("the peer's first message is not that of a lockstep agent");
  }
  LinkHello hello;
  hello.oldest_version = take_u16(payload);
  hello.newest_version = take_u16(payload);
  const auto flags = static_cast<unsigned char>(take(payload, 1)[0]);
  hello.has_secret = (flags & kHasSecret) != 0;
  hello.tls = (flags & kTls) != 0;
  hello.nonce = take(payload, kLinkNonceBytes);
  if (kind == HandshakeKind::client_hello) {
    hello.run_id = take(payload, take_u16(payload));
  }
  return hello;
}

std::optional<std::string> difference(const LinkHello& own, const LinkHello& peer) {
  if (peer.newest_version < own.oldest_version || peer.oldest_version > own.newest_version) {
    return concat("the protocol versions differ: this lockstep speaks ", own.oldest_version, " to ",
                  own.newest_version, ", the peer ", peer.oldest_version, " to ",
                  peer.newest_version, "; install the same lockstep on all nodes");
  }
  if (own.has_secret != peer.has_secret) {
    return concat("the secret differs: ", own.has_secret ? "this" : "the other",
                  " side has one and ", own.has_secret ? "the other" : "this",
                  " was started with --insecure; give the same --secret-file to all nodes");
  }
  if (own.tls != peer.tls) {
    return concat("one side encrypts and the other does not: ", own.tls ? "this" : "the other",
                  " was started with --tls and ", own.tls ? "the other" : "this",
                  " without it; give --tls to all nodes or to none");
  }
  return std::nullopt;
}

std::string printable(std::string_view text) {
  std::string clean(text.substr(0, kMaxReasonBytes));
  std::ranges::replace_if(
      clean, [](char letter) { return letter < 0x20 || letter > 0x7e; }, '?');
  return clean;
}

}  // namespace lockstep
