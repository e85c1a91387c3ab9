#include "control/link_session.h"

#include <utility>

#include "core/hmac.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kNumberBytes = 8;
static_assert(LinkSession::kMaxMessageBytes + kHmacBytes + kNumberBytes == kMaxFrameBytes);

constexpr std::string_view kClientProof = "lockstep link: proof of the client";
constexpr std::string_view kServerProof = "lockstep link: proof of the server";
constexpr std::string_view kClientKey = "lockstep link: key of the client";
constexpr std::string_view kServerKey = "lockstep link: key of the server";
constexpr std::string_view kTlsKey = "lockstep link: key of TLS";

std::string encode_number(std::uint64_t number) {
  std::string bytes;
  for (std::size_t byte = 0; byte < kNumberBytes; ++byte) {
    bytes.push_back(static_cast<char>(number >> (8 * byte)));
  }
  return bytes;
}

std::uint64_t decode_number(std::string_view bytes) {
  std::uint64_t number = 0;
  for (std::size_t byte = 0; byte < kNumberBytes; ++byte) {
    number |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[byte])) << (8 * byte);
  }
  return number;
}

LinkHello own_hello(const LinkSessionOptions& options) {
  return {.has_secret = !options.secret.empty(),
          .tls = options.tls,
          .nonce = options.nonce,
          .run_id = options.role == LinkRole::client ? options.run_id : ""};
}

}  // namespace

LinkSession::LinkSession(LinkSessionOptions options)
    : options_(std::move(options)), hello_(own_hello(options_)) {
  LOCKSTEP_CHECK(options_.nonce.size() == kLinkNonceBytes, options_.nonce.size());
  if (options_.run_id.size() > kMaxRunIdBytes) {
    throw InvalidArgument(concat("the run id (--rdzv-id) has ", options_.run_id.size(),
                                 " bytes; it can have ", kMaxRunIdBytes));
  }
  if (!options_.secret.empty()) hmac_sha256(options_.secret, {});  // is there an OpenSSL?
  LOCKSTEP_CHECK(!options_.tls || !options_.secret.empty(), "TLS without a secret");
  if (options_.tls) {
    TlsStream stream(
        options_.role == LinkRole::server ? TlsStream::Role::server : TlsStream::Role::client,
        hmac_sha256(options_.secret, kTlsKey));
    if (options_.role == LinkRole::server) tls_ = std::move(stream);
  }
  if (options_.role == LinkRole::server) {
    transcript_ = encode_hello(HandshakeKind::server_hello, hello_);
  }
}

std::string LinkSession::start() const {
  return options_.role == LinkRole::server ? encode_frame(transcript_) : "";
}

LinkSession::Result LinkSession::receive(std::string_view bytes) {
  Result result;
  if (state_ == State::closed || bytes.empty()) return result;
  // Who was started without --tls says so in the clear, and is to hear why that cannot be.
  if (!std::exchange(heard_something_, true) && tls_ && !may_be_tls(bytes)) tls_.reset();
  if (tls_) {
    receive_tls(bytes, result);
  } else {
    receive_frames(bytes, result);
  }
  if (tls_) {
    if (!result.send.empty()) tls_->send(std::exchange(result.send, {}));
    result.send = tls_->take_output();
  }
  result.established = established();
  return result;
}

void LinkSession::receive_tls(std::string_view bytes, Result& result) {
  const bool was_encrypted = tls_->established();
  std::string text;
  try {
    text = tls_->receive(bytes);
  } catch (const InvalidArgument& error) {
    if (was_encrypted) {
      return break_off(concat("what came was changed on its way, or forged (", error.what(), ")"),
                       result);
    }
    return close(concat("the secret differs, or what came was changed on its way (", error.what(),
                        "); give the same --secret-file to all nodes"),
                 result);
  }
  receive_frames(text, result);
}

void LinkSession::receive_frames(std::string_view bytes, Result& result) {
  try {
    while (state_ != State::closed) {
      const std::optional<std::string> payload = decoder_.next(bytes);
      if (!payload) break;
      const bool was_clear = !tls_;
      take_frame(*payload, result);
      // What follows the server's hello is for TLS, and a server says nothing yet.
      if (was_clear && tls_ && !bytes.empty()) {
        return refuse("the other side speaks before it was asked", result);
      }
    }
  } catch (const InvalidArgument& error) {
    if (state_ == State::established) {
      break_off(error.what(), result);
    } else {
      // The port of another program, or another program at this port.
      refuse(concat("the peer does not speak lockstep's protocol between agents: ", error.what()),
             result);
    }
  }
}

void LinkSession::take_frame(const std::string& payload, Result& result) {
  if (state_ == State::established) {
    on_sealed(payload, result);
  } else {
    take_handshake(payload, result);
  }
}

void LinkSession::take_handshake(const std::string& payload, Result& result) {
  if (!payload.empty() && payload[0] == static_cast<char>(HandshakeKind::refusal)) {
    close("the peer refused: " + printable(std::string_view(payload).substr(1)), result);
  } else if (state_ == State::awaiting_accept) {
    on_accept(payload, result);
  } else if (options_.role == LinkRole::client) {
    on_server_hello(payload, result);
  } else {
    on_client_hello(payload, result);
  }
}

void LinkSession::on_server_hello(std::string_view payload, Result& result) {
  transcript_ = payload;
  const LinkHello server = take_hello(HandshakeKind::server_hello, payload);
  if (const auto why = difference(hello_, server)) return refuse(*why, result);
  const std::string hello = encode_hello(HandshakeKind::client_hello, hello_);
  transcript_ += hello;
  const std::string proof = prove(kClientProof);
  transcript_ += proof;
  result.send += encode_frame(hello + proof);
  state_ = State::awaiting_accept;
  if (options_.tls) {
    tls_.emplace(TlsStream::Role::client, hmac_sha256(options_.secret, kTlsKey));
  }
}

void LinkSession::on_client_hello(std::string_view payload, Result& result) {
  const std::string_view whole = payload;
  const LinkHello client = take_hello(HandshakeKind::client_hello, payload);
  if (const auto why = difference(hello_, client)) return refuse(*why, result);
  transcript_ += whole.substr(0, whole.size() - payload.size());
  if (!equal_in_constant_time(payload, prove(kClientProof))) {
    return refuse(
        "the secret differs: the node that connects does not have this job's secret; give the same "
        "--secret-file to all nodes",
        result);
  }
  // Compared after the proof: a stranger learns nothing about the job.
  if (client.run_id != options_.run_id) {
    return refuse(concat("the run ids differ: the node that connects says --rdzv-id='",
                         client.run_id, "', this job is '", options_.run_id,
                         "'; give the same to all nodes (a $RANDOM is another on each)"),
                  result);
  }
  transcript_ += payload;
  result.send +=
      encode_frame(std::string(1, static_cast<char>(HandshakeKind::accept)) + prove(kServerProof));
  establish();
}

void LinkSession::on_accept(std::string_view payload, Result& result) {
  if (payload.empty() || payload[0] != static_cast<char>(HandshakeKind::accept)) {
    throw InvalidArgument("its answer to the handshake is none");
  }
  if (!equal_in_constant_time(payload.substr(1), prove(kServerProof))) {
    return refuse("the secret differs: the node that was connected to does not have this job's",
                  result);
  }
  establish();
}

void LinkSession::on_sealed(std::string_view payload, Result& result) {
  if (payload.size() < kHmacBytes + kNumberBytes) {
    return break_off(concat("a frame of ", payload.size(), " bytes came, too short to be one"),
                     result);
  }
  const std::string_view protected_part = payload.substr(kHmacBytes);
  if (!equal_in_constant_time(payload.substr(0, kHmacBytes), mac(receive_key_, protected_part))) {
    return break_off("a frame was changed on its way, or forged", result);
  }
  const std::uint64_t number = decode_number(protected_part);
  if (number != next_received_) {
    return break_off(concat("frame ", number, " came where ", next_received_,
                            " was due: repeated, lost or out of order"),
                     result);
  }
  ++next_received_;
  result.messages.emplace_back(protected_part.substr(kNumberBytes));
}

std::string LinkSession::seal(std::string_view message) {
  LOCKSTEP_CHECK(established(), "a message was to be sent before the peer had proven itself");
  if (message.size() > kMaxMessageBytes) {
    throw InvalidArgument(concat("a message of ", message.size(),
                                 " bytes is too long for a link; at most ", kMaxMessageBytes,
                                 " fit"));
  }
  std::string protected_part = encode_number(next_sent_++);
  protected_part += message;
  std::string frame = encode_frame(mac(send_key_, protected_part) + protected_part);
  if (!tls_) return frame;
  tls_->send(frame);
  return tls_->take_output();
}

std::string LinkSession::mac(std::string_view key, std::string_view data) const {
  // Without a secret a MAC would cost time and prove nothing.
  return options_.secret.empty() ? std::string(kHmacBytes, '\0') : hmac_sha256(key, data);
}

std::string LinkSession::prove(std::string_view label) const {
  return mac(options_.secret, std::string(label) + '\0' + transcript_);
}

void LinkSession::establish() {
  const bool is_client = options_.role == LinkRole::client;
  send_key_ = prove(is_client ? kClientKey : kServerKey);
  receive_key_ = prove(is_client ? kServerKey : kClientKey);
  decoder_.set_limit(kMaxFrameBytes);
  state_ = State::established;
}

void LinkSession::refuse(const std::string& reason, Result& result) {
  result.send +=
      encode_frame(std::string(1, static_cast<char>(HandshakeKind::refusal)) + printable(reason));
  close(reason, result);
}

// What the peer itself would never have sent.
void LinkSession::break_off(const std::string& reason, Result& result) {
  result.tampered = true;
  close(reason, result);
}

void LinkSession::close(const std::string& reason, Result& result) {
  state_ = State::closed;
  result.closed_because = printable(reason);
}

}  // namespace lockstep
