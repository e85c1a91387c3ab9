// Frames and the session between agents. The first byte of an input says which end is under test
// and how far it has come; the second, into how long pieces the rest is cut. The rest is what the
// peer sends.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "control/frame.h"
#include "control/link_session.h"
#include "lockstep/error.h"

namespace {

using namespace lockstep;

LinkSession make(LinkRole role, bool with_secret, bool tls) {
  return LinkSession({.role = role,
                      .secret = with_secret ? "0123456789abcdef" : "",
                      .tls = tls,
                      .run_id = "job",
                      .nonce = std::string(kLinkNonceBytes, role == LinkRole::client ? 'c' : 's')});
}

// Frames come out the same however the stream is cut.
std::vector<std::string> cut(std::string_view stream, std::size_t piece) {
  FrameDecoder decoder(1000);
  std::vector<std::string> frames;
  try {
    for (; !stream.empty(); stream.remove_prefix(std::min(piece, stream.size()))) {
      std::string_view bytes = stream.substr(0, piece);
      while (auto frame = decoder.next(bytes)) frames.push_back(std::move(*frame));
      LOCKSTEP_CHECK(bytes.empty(), bytes.size());
    }
  } catch (const InvalidArgument&) {
    frames.emplace_back("refused");
  }
  return frames;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const bool is_client = (data[0] & 1) != 0, with_secret = (data[0] & 2) != 0;
  const bool shake_hands = (data[0] & 4) != 0, tls = with_secret && (data[0] & 8) != 0;
  const std::size_t piece = std::max<std::size_t>(1, data[1]);
  const std::string_view stream(reinterpret_cast<const char*>(data) + 2, size - 2);
  LOCKSTEP_CHECK(cut(stream, piece) == cut(stream, stream.size() + 1), piece);

  LinkSession client = make(LinkRole::client, with_secret, tls);
  LinkSession server = make(LinkRole::server, with_secret, tls);
  if (shake_hands) {
    for (std::string bytes = server.start(); !bytes.empty();) {
      bytes = server.receive(client.receive(bytes).send).send;
    }
    LOCKSTEP_CHECK(client.established() && server.established());
  }
  LinkSession& tested = is_client ? client : server;
  LinkSession& peer = is_client ? server : client;

  bool closed = false;
  for (std::string_view rest = stream; !rest.empty();
       rest.remove_prefix(std::min(piece, rest.size()))) {
    const auto result = tested.receive(rest.substr(0, piece));
    LOCKSTEP_CHECK(!closed || (result.messages.empty() && result.send.empty()));
    // Who does not have the secret gets in no message and never becomes a peer.
    LOCKSTEP_CHECK(!with_secret || result.messages.empty());
    LOCKSTEP_CHECK(!with_secret || shake_hands || !result.established);
    closed = closed || result.closed_because.has_value();
  }
  if (tested.established() && peer.established()) peer.receive(tested.seal(stream));
  return 0;
}
