#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace lockstep {

/// One end of a TLS 1.3 connection between two who share a key, so that no certificates are needed.
/// Each connection has a secret of its own on top of it: what was recorded cannot be read later,
/// even by who learns the key. Sans-IO: bytes go in, bytes and text come out; it owns no socket.
///
/// OpenSSL does it. Its library is loaded by the first object and not before, as in core/hmac.h.
/// Not thread-safe.
class TlsStream {
 public:
  enum class Role { client, server };

  /// The key has 16 to 64 bytes that nobody can guess. Throws SystemError where OpenSSL is not
  /// installed, naming the package, or is too old.
  TlsStream(Role role, std::string_view key);
  ~TlsStream();
  TlsStream(TlsStream&& other) noexcept;
  TlsStream& operator=(TlsStream&& other) noexcept;

  /// What the peer sent, cut anywhere; returns the text in it. Throws InvalidArgument if that is no
  /// TLS, was changed on its way, or comes from who does not have the key; take_output() may then
  /// have what tells the peer so, and nothing else can be done with the stream.
  std::string receive(std::string_view bytes);

  /// Text for the peer. Before the handshake is over it is kept.
  void send(std::string_view text);

  /// Bytes for the peer, each once; to be asked after every other call.
  std::string take_output();

  /// Whether both ends have shown that they have the key.
  bool established() const;

 private:
  struct Connection;
  std::unique_ptr<Connection> connection_;
};

/// Whether a connection that begins with these bytes may be TLS; at least one is needed.
inline bool may_be_tls(std::string_view first_bytes) {
  return first_bytes.starts_with('\x16');  // a record of its handshake
}

}  // namespace lockstep
