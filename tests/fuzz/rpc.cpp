// What an agent reads from a peer: frames, and the values in them. The first byte of an input says
// into how long pieces the rest is cut, which is what the peer sends; the hello before it is given.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "rpc/inbox.h"
#include "rpc/wire.h"

namespace {

using namespace lockstep;
using namespace lockstep::rpc;

template <typename T>
void read_as(const Payload& payload) {
  try {
    Reader in(payload);
    const T value = Codec<T>::read(in);
    in.expect_end();
    Payload again;
    Writer out(again);
    Codec<T>::write(out, value);
    LOCKSTEP_CHECK(again.blobs.size() == payload.blobs.size(), again.blobs.size());
  } catch (const BadMessage&) {
  }
}

class Listener : public Inbox::Listener {
 public:
  void on_hello(const HelloFrame&) override {}
  bool wants(const MessageHead& head) override { return head.id % 5 != 0; }
  Blob shared_blob(const BlobPlace& place) override {
    if (place.segment != 1 || place.offset > memory_.size() ||
        place.bytes > memory_.size() - place.offset) {
      throw BadMessage("not within it");
    }
    return {.data = memory_.data() + place.offset, .bytes = place.bytes, .owner = nullptr};
  }
  void on_message(Received message) override {
    LOCKSTEP_CHECK(message.payload.bytes.size() == message.head.payload_bytes, message.head.id);
    for (const Blob& blob : message.payload.blobs) {  // all of it can be read
      for (std::size_t at = 0; at < blob.bytes; ++at)
        sum_ += static_cast<std::uint8_t>(blob.data[at]);
    }
    read_as<std::vector<std::string>>(message.payload);
    read_as<std::vector<Blob>>(message.payload);
    read_as<std::tuple<int, std::optional<std::vector<float>>, std::vector<bool>>>(message.payload);
    read_as<std::map<std::string, std::vector<std::pair<bool, double>>>>(message.payload);
  }
  void on_failure(FailureFrame failure) override { sum_ += failure.failure.message.size(); }
  void on_segment(const SegmentFrame&) override {}
  void on_release(std::uint64_t) override {}
  void on_forget(std::uint64_t) override {}
  void on_drop_object(std::uint64_t) override {}
  void on_goodbye() override {}

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(1000);
  std::size_t sum_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t piece = data[0] == 0 ? size : data[0];
  const std::string hello = encode(HelloFrame{.max_calls = 1, .name = "peer"});
  std::string bytes = frame_header(FrameKind::hello, hello.size()) + hello;
  bytes.append(reinterpret_cast<const char*>(data) + 1, size - 1);
  Listener listener;
  Inbox inbox({.message_bytes = 1 << 16, .partial_bytes = 1 << 17}, listener);
  FrameStream stream(inbox);
  try {
    for (std::string_view rest = bytes; !rest.empty();) {
      const std::span<std::byte> target = stream.target();
      LOCKSTEP_CHECK(!target.empty(), rest.size());
      const std::size_t count = std::min({piece, target.size(), rest.size()});
      std::memcpy(target.data(), rest.data(), count);
      rest.remove_prefix(count);
      stream.filled(count);
    }
  } catch (const BadMessage&) {
  }
  return 0;
}
