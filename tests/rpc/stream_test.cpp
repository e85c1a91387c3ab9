#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "rpc/inbox.h"
#include "rpc/outbox.h"
#include "rpc/wire.h"

namespace lockstep::rpc {
namespace {

// Keeps what it hears.
class Heard : public Inbox::Listener {
 public:
  void on_hello(const HelloFrame& hello) override { name = hello.name; }
  bool wants(const MessageHead& head) override { return head.id != unwanted; }
  Blob shared_blob(const BlobPlace&) override { throw BadMessage("no segments here"); }
  void on_message(Received message) override { messages.push_back(std::move(message)); }
  void on_failure(FailureFrame failure) override { failures.push_back(std::move(failure)); }
  void on_segment(const SegmentFrame&) override {}
  void on_release(std::uint64_t segment) override { numbers.push_back(segment); }
  void on_forget(std::uint64_t segment) override { numbers.push_back(segment); }
  void on_drop_object(std::uint64_t object) override { numbers.push_back(object); }
  void on_goodbye() override { goodbye = true; }

  std::string name;
  std::uint64_t unwanted = 0;
  std::vector<Received> messages;
  std::vector<FailureFrame> failures;
  std::vector<std::uint64_t> numbers;
  bool goodbye = false;
};

std::string drain(Outbox& outbox) {
  std::string all;
  while (!outbox.empty()) {
    int descriptor = -1;
    std::size_t bytes = 0;
    for (const iovec& part : outbox.next(8, &descriptor)) {
      all.append(static_cast<const char*>(part.iov_base), part.iov_len);
      bytes += part.iov_len;
    }
    outbox.written(bytes);
  }
  EXPECT_EQ(outbox.bytes(), 0u);
  return all;
}

void feed(FrameStream& stream, std::string_view bytes, std::size_t piece) {
  while (!bytes.empty()) {
    const std::span<std::byte> target = stream.target();
    const std::size_t count = std::min({piece, target.size(), bytes.size()});
    std::memcpy(target.data(), bytes.data(), count);
    bytes.remove_prefix(count);
    stream.filled(count);
  }
}

std::string greeting() {
  Outbox outbox;
  outbox.push(FrameKind::hello, encode(HelloFrame{.max_calls = 3, .name = "peer"}));
  return drain(outbox);
}

Blob filled_blob(std::size_t bytes, char value) {
  auto memory = std::make_shared<std::string>(bytes, value);
  return {.data = reinterpret_cast<std::byte*>(memory->data()), .bytes = bytes, .owner = memory};
}

MessageHead head_of(std::uint64_t id, const Payload& payload) {
  MessageHead head;
  head.id = id;
  head.function = "f";
  head.signature = "->void";
  head.payload_bytes = payload.bytes.size();
  for (const Blob& blob : payload.blobs) head.blobs.push_back({.bytes = blob.bytes});
  return head;
}

void push(Outbox& outbox, std::uint64_t id, Payload payload) {
  const MessageHead head = head_of(id, payload);
  outbox.push_message(head, std::move(payload));
}

TEST(RpcStream, messages_arrive_whole_however_the_bytes_are_cut) {
  for (const std::size_t piece : {1u, 7u, 1000u, 65536u, 1u << 20}) {
    Outbox outbox;
    push(outbox, 1, {.bytes = "small", .blobs = {}});
    push(outbox, 2, {.bytes = std::string(300000, 'a'), .blobs = {filled_blob(300000, 'b')}});
    push(outbox, 3, {.bytes = "", .blobs = {filled_blob(5, 'c'), {}, filled_blob(70000, 'd')}});
    outbox.push(FrameKind::release, encode_number(9));
    push(outbox, 4, {.bytes = "last", .blobs = {}});
    Heard heard;
    Inbox inbox({}, heard);
    FrameStream stream(inbox);
    feed(stream, greeting() + drain(outbox), piece);
    EXPECT_EQ(heard.name, "peer");
    EXPECT_EQ(heard.numbers, std::vector<std::uint64_t>{9});
    ASSERT_EQ(heard.messages.size(), 4u);
    // Small ones have passed the large ones, which took turns.
    std::vector<std::uint64_t> order;
    for (const Received& each : heard.messages) order.push_back(each.head.id);
    EXPECT_EQ(order, (std::vector<std::uint64_t>{1, 4, 3, 2}));
    const Payload& large = heard.messages[3].payload;
    EXPECT_EQ(large.bytes, std::string(300000, 'a'));
    EXPECT_EQ(large.blobs.at(0).data[299999], std::byte{'b'});
    EXPECT_EQ(heard.messages[2].payload.blobs.at(2).data[69999], std::byte{'d'});
  }
}

TEST(RpcStream, a_message_that_nobody_waits_for_is_thrown_away_as_it_comes) {
  Outbox outbox;
  push(outbox, 5, {.bytes = "x", .blobs = {filled_blob(1000000, 'b')}});
  push(outbox, 6, {.bytes = "y", .blobs = {}});
  Heard heard;
  heard.unwanted = 5;
  Inbox inbox({}, heard);
  FrameStream stream(inbox);
  feed(stream, greeting() + drain(outbox), 5000);
  ASSERT_EQ(heard.messages.size(), 1u);
  EXPECT_EQ(heard.messages[0].head.id, 6u);
}

TEST(RpcStream, limits_are_checked_before_memory_is_taken) {
  const auto announce = [](std::uint64_t payload_bytes, std::uint64_t blob_bytes) {
    Heard heard;
    Inbox inbox({.message_bytes = 1000, .partial_bytes = 1500}, heard);
    FrameStream stream(inbox);
    MessageHead head = head_of(1, {});
    head.payload_bytes = payload_bytes;
    head.blobs = {{.bytes = blob_bytes}};
    Outbox outbox;
    outbox.push(FrameKind::call, encode(head));
    head.id = 2;
    outbox.push(FrameKind::call, encode(head));
    feed(stream, greeting() + drain(outbox), 100);
  };
  EXPECT_NO_THROW(announce(500, 200));
  EXPECT_THROW(announce(500, 501), BadMessage);
  EXPECT_THROW(announce(500, 400), BadMessage);  // the second
  EXPECT_THROW(announce(~std::uint64_t{0}, 2), BadMessage);
  EXPECT_THROW(announce(2, ~std::uint64_t{0}), BadMessage);
}

TEST(RpcStream, frames_that_make_no_sense_are_refused) {
  const auto refused = [](const std::string& bytes) {
    Heard heard;
    Inbox inbox({}, heard);
    FrameStream stream(inbox);
    EXPECT_THROW(feed(stream, bytes, 1000), BadMessage);
  };
  const auto frame = [](FrameKind kind, const std::string& content) {
    return frame_header(kind, content.size()) + content;
  };
  refused(frame(FrameKind::goodbye, ""));  // before the hello
  refused(greeting() + greeting());
  refused(greeting() + frame(FrameKind::piece, encode_number(7) + "abc"));  // of no message
  refused(greeting() + frame(FrameKind::piece, "abc"));
  refused(greeting() + frame(static_cast<FrameKind>(99), ""));
  refused(greeting() + frame(FrameKind::release, "1234567"));
  refused(greeting() + frame(FrameKind::failure, encode_number(1) + "\x63"));
  refused(greeting() + frame_header(FrameKind::call, kMaxContentBytes + 1));
  refused(frame(FrameKind::hello, "not lockstep at all, is it"));
}

TEST(RpcStream, all_frames_survive_random_changes_or_are_refused) {
  Outbox outbox;
  push(outbox, 1, {.bytes = "small", .blobs = {filled_blob(100, 'x')}});
  push(outbox, 2, {.bytes = std::string(70000, 'a'), .blobs = {}});
  outbox.push(FrameKind::failure,
              encode(FailureFrame{.id = 3, .failure = {.detail = "d", .message = "m"}}));
  const std::string whole = greeting() + drain(outbox);
  std::mt19937 random(1);
  for (int count = 0; count < 3000; ++count) {
    std::string bytes = whole;
    bytes[random() % 300] = static_cast<char>(random());
    Heard heard;
    Inbox inbox({.message_bytes = 1 << 20, .partial_bytes = 1 << 20}, heard);
    FrameStream stream(inbox);
    try {
      feed(stream, bytes, 1 + random() % 100000);
    } catch (const BadMessage&) {
    }
  }
}

TEST(RpcStream, values_that_end_too_early_are_refused) {
  using Value = std::tuple<std::vector<std::string>, std::optional<double>, std::vector<float>>;
  Payload payload;
  Writer out(payload);
  Codec<Value>::write(out, {{"a", "bc"}, 1.5, {1, 2, 3}});
  const std::string whole = payload.bytes;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    payload.bytes = whole.substr(0, size);
    Reader in(payload);
    EXPECT_THROW(Codec<Value>::read(in), BadMessage) << size;
  }
  payload.bytes = whole + "x";
  Reader in(payload);
  Codec<Value>::read(in);
  EXPECT_THROW(in.expect_end(), BadMessage);
}

TEST(RpcStream, types_have_names) {
  EXPECT_EQ((signature<void, int, const std::string&, std::vector<std::optional<float>>>()),
            "i32,s,[f32?]->void");
  EXPECT_EQ((signature<std::map<std::string, Blob>>()), "->{s:blob}");
}

}  // namespace
}  // namespace lockstep::rpc
