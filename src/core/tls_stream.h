#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace lockstep {

/// What a client of servers with certificates believes, and what it shows them. Files in PEM.
class TlsTrust {
 public:
  struct Options {
    std::string authorities;  // a file; empty: those that this system trusts
    std::string certificate;  // a file with the client's own and its chain; empty: it has none
    std::string key;          // a file with the key of that
  };

  /// Reads the files. Throws InvalidArgument naming the one that cannot be used, and SystemError
  /// where OpenSSL is not installed.
  explicit TlsTrust(const Options& options);
  ~TlsTrust();
  TlsTrust(const TlsTrust&) = delete;
  TlsTrust& operator=(const TlsTrust&) = delete;

 private:
  friend class TlsStream;
  void* context_ = nullptr;
};

/// One end of a TLS connection. Between two who share a key it is TLS 1.3 and no certificates are
/// needed; each connection has a secret of its own on top of the key: what was recorded cannot be
/// read later, even by who learns the key. To a server with a certificate it is TLS 1.2 or newer.
/// Sans-IO: bytes go in, bytes and text come out; it owns no socket.
///
/// OpenSSL does it. Its library is loaded by the first object and not before, as in core/hmac.h.
/// Not thread-safe.
class TlsStream {
 public:
  enum class Role { client, server };

  /// The key has 16 to 64 bytes that nobody can guess. Throws SystemError where OpenSSL is not
  /// installed, naming the package, or is too old.
  TlsStream(Role role, std::string_view key);

  /// A client of a server whose certificate must be for `server`, a name or a numeric address, and
  /// come from an authority that is trusted. Throws SystemError.
  TlsStream(const TlsTrust& trust, const std::string& server);

  ~TlsStream();
  TlsStream(TlsStream&& other) noexcept;
  TlsStream& operator=(TlsStream&& other) noexcept;

  /// What the peer sent, cut anywhere; returns the text in it. Throws InvalidArgument if that is no
  /// TLS, was changed on its way, or comes from who does not have the key or a certificate that is
  /// believed; take_output() may then
  /// have what tells the peer so, and nothing else can be done with the stream.
  std::string receive(std::string_view bytes);

  /// Text for the peer. Before the handshake is over it is kept.
  void send(std::string_view text);

  /// Bytes for the peer, each once; to be asked after every other call.
  std::string take_output();

  /// Whether the handshake is over: both ends have shown who they are.
  bool established() const;

 private:
  struct Connection;
  void start(void* context, Role role);
  std::unique_ptr<Connection> connection_;
};

/// Whether a connection that begins with these bytes may be TLS; at least one is needed.
inline bool may_be_tls(std::string_view first_bytes) {
  return first_bytes.starts_with('\x16');  // a record of its handshake
}

}  // namespace lockstep
