// What nodes and the coordinator read from each other: text in, a message or InvalidArgument out;
// what was read is written as the same text again and again. And byte streams that travel beside.
#include <sys/socket.h>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launch/messages.h"
#include "launch/stream_bundle.h"
#include "lockstep/error.h"

namespace {

// Pieces of streams, each behind its length in two bytes, as the coordinator's node takes them.
int run_streams(std::string_view text) {
  lockstep::EventLoop loop;
  std::vector<lockstep::UniqueFd> others;
  lockstep::StreamBundle streams(
      loop, {.send = [](const std::string& sent) { lockstep::decode_stream_message(sent); },
             .queued_bytes = [] { return std::size_t{0}; },
             .connect =
                 [&](std::uint64_t epoch) {
                   int ends[2];
                   if (epoch % 4 == 3 || others.size() >= 16 ||
                       ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) {
                     return lockstep::UniqueFd();
                   }
                   others.emplace_back(ends[1]);
                   if (epoch % 4 == 2) others.back().reset();  // it breaks at once
                   return lockstep::UniqueFd(ends[0]);
                 }});
  try {
    while (text.size() > 3) {
      const std::size_t length = static_cast<unsigned char>(text[1]) * std::size_t{256} +
                                 static_cast<unsigned char>(text[2]);
      text.remove_prefix(3);
      const std::string_view piece = text.substr(0, length);
      text.remove_prefix(piece.size());
      const lockstep::StreamMessage message = lockstep::decode_stream_message(piece);
      LOCKSTEP_CHECK(lockstep::encode(message) == piece, message.stream);
      streams.on_message(piece);
      loop.run_once(std::chrono::milliseconds(0));
    }
  } catch (const lockstep::InvalidArgument&) {
  }
  return 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (lockstep::is_stream_message(text)) return run_streams(text);
  try {
    const std::string once = lockstep::encode(lockstep::decode(text));
    LOCKSTEP_CHECK(lockstep::encode(lockstep::decode(once)) == once, text);
  } catch (const lockstep::InvalidArgument&) {
  }
  return 0;
}
