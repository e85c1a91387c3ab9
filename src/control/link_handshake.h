#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// The messages with which the two ends of a link begin (link_session.h), as bytes.

inline constexpr std::uint16_t kOldestLinkVersion = 1;
inline constexpr std::uint16_t kNewestLinkVersion = 1;
inline constexpr std::size_t kLinkNonceBytes = 32;
inline constexpr std::size_t kMaxRunIdBytes = 512;
inline constexpr std::size_t kMaxHandshakeBytes = 1024;  // of one frame; three are exchanged

enum class HandshakeKind : unsigned char { server_hello = 1, client_hello, accept, refusal };

/// What both say first. The layout is the same in all versions, so that ends of different age can
/// name the difference.
struct LinkHello {
  std::uint16_t oldest_version = kOldestLinkVersion;
  std::uint16_t newest_version = kNewestLinkVersion;
  bool has_secret = false;
  bool tls = false;    // all that follows the server's hello is encrypted
  std::string nonce;   // kLinkNonceBytes
  std::string run_id;  // a client's only
};

/// The bytes of a hello. A client's proof follows them.
std::string encode_hello(HandshakeKind kind, const LinkHello& hello);

/// Reads a hello off the front of `payload`, after which a client's proof is left. Throws
/// InvalidArgument if it is none.
LinkHello take_hello(HandshakeKind kind, std::string_view& payload);

/// Why two ends cannot talk, from the point of view of the one that has `own`; std::nullopt if they
/// can.
std::optional<std::string> difference(const LinkHello& own, const LinkHello& peer);

/// A peer's words for people to read: without control characters, and not long.
std::string printable(std::string_view text);

}  // namespace lockstep
