#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/frame.h"
#include "control/link_handshake.h"
#include "core/tls_stream.h"

namespace lockstep {

enum class LinkRole { client, server };

struct LinkSessionOptions {
  LinkRole role = LinkRole::client;

  // Known to all agents of a job and to nobody else. It must be random, not a password: who hears a
  // handshake can try guesses at home. Empty means --insecure on every node: nothing is proven and
  // nothing is protected, so everyone who can reach the port can join the job and run programs as
  // its user; only accidents (another version, another job, a cut stream) are still noticed.
  std::string secret;

  // Encrypt all but the server's hello, by TLS 1.3 with a key made from the secret, which there
  // must be. Both ends or none.
  bool tls = false;

  // Both ends must have the same one: --rdzv-id.
  std::string run_id;

  // kLinkNonceBytes that were never used before; see random_bytes(). Given by the caller so that a
  // simulation repeats itself.
  std::string nonce;
};

/// One end of an authenticated stream of messages between two agents. Sans-IO: bytes go in, bytes
/// and messages come out; it owns no socket and knows no time.
///
///     server: hello (versions, nonce)  ->
///             <-  client: hello (versions, nonce, run id), HMAC(secret, "client", both hellos)
///     server: HMAC(secret, "server", both hellos, the client's proof)  ->
///     both:   frames of HMAC(key of this direction, number, message), number, message
///
/// Keys are made from the secret and both hellos, so that nothing recorded can be played again
/// later; numbers make replayed, lost and reordered frames visible within one connection. Messages
/// are protected from change, and with `tls` from being read.
///
/// Until the peer has proven itself, at most 4 KiB of its bytes are kept; with `tls` also what
/// OpenSSL keeps of a handshake, tens of KiB. How long it may take is
/// the caller's to decide. Not thread-safe.
class LinkSession {
 public:
  struct Result {
    std::string send;                   // for the peer, also if the session is closed now
    std::vector<std::string> messages;  // from the peer, in order
    std::optional<std::string> closed_because;
    bool established = false;  // the peer has proven itself, now or in an earlier call
    bool tampered = false;     // closed because someone between the two has changed something
  };

  /// The longest message: a frame less what protects it.
  static constexpr std::size_t kMaxMessageBytes = kMaxFrameBytes - 40;

  /// Throws InvalidArgument if the run id is longer than kMaxRunIdBytes; SystemError if there is a
  /// secret and no OpenSSL.
  explicit LinkSession(LinkSessionOptions options);

  /// What this end sends first; nothing for a client.
  std::string start() const;

  /// Whatever the peer sent, cut anywhere. Never throws for what a peer can send: what is wrong
  /// with it is in `closed_because`, and later calls change nothing.
  Result receive(std::string_view bytes);

  /// The bytes that carry a message to the peer. Only once established; each result is to be sent
  /// once, in order. Throws InvalidArgument if the message is longer than kMaxMessageBytes.
  std::string seal(std::string_view message);

  bool established() const { return state_ == State::established; }

 private:
  enum class State { awaiting_hello, awaiting_accept, established, closed };

  void receive_tls(std::string_view bytes, Result& result);
  void receive_frames(std::string_view bytes, Result& result);
  void take_frame(const std::string& payload, Result& result);
  void take_handshake(const std::string& payload, Result& result);
  void on_server_hello(std::string_view payload, Result& result);
  void on_client_hello(std::string_view payload, Result& result);
  void on_accept(std::string_view payload, Result& result);
  void on_sealed(std::string_view payload, Result& result);

  std::string mac(std::string_view key, std::string_view data) const;
  std::string prove(std::string_view label) const;
  void establish();
  void refuse(const std::string& reason, Result& result);
  void break_off(const std::string& reason, Result& result);
  void close(const std::string& reason, Result& result);

  LinkSessionOptions options_;
  LinkHello hello_;
  State state_ = State::awaiting_hello;
  FrameDecoder decoder_{kMaxHandshakeBytes};
  std::optional<TlsStream> tls_;  // from where on everything is encrypted
  bool heard_something_ = false;
  std::string transcript_;  // both hellos and the client's proof, as far as they are known
  std::string send_key_;
  std::string receive_key_;
  std::uint64_t next_sent_ = 0;
  std::uint64_t next_received_ = 0;
};

}  // namespace lockstep
