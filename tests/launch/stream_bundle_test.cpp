#include "launch/stream_bundle.h"

#include <sys/socket.h>
#include <cerrno>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using Kind = StreamMessage::Kind;
using std::chrono::milliseconds;

// Two connected sockets that do not block.
std::pair<UniqueFd, UniqueFd> connected() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// What can be read now.
std::string read_some(const UniqueFd& socket) {
  std::string text(64 << 10, '\0');
  const ssize_t count = ::recv(socket.get(), text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return text;
}

bool at_end(const UniqueFd& socket) {
  char byte;
  const ssize_t count = ::recv(socket.get(), &byte, 1, MSG_PEEK);
  return count == 0 || (count < 0 && errno == ECONNRESET);
}

std::size_t write_some(const UniqueFd& socket, std::string_view bytes) {
  const ssize_t count = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return count > 0 ? static_cast<std::size_t>(count) : 0;
}

void write_all(const UniqueFd& socket, std::string_view bytes) {
  EXPECT_EQ(write_some(socket, bytes), bytes.size());
}

/// The two ends of a link. Messages arrive when the test lets them.
struct StreamBundleTest : ::testing::Test {
  StreamBundle::Callbacks callbacks(std::deque<std::string>& sent, std::size_t& queued) {
    return {.send = [&sent](std::string message) { sent.push_back(std::move(message)); },
            .queued_bytes = [&queued] { return queued; },
            .connect = {}};
  }

  StreamBundle make_far() {
    auto all = callbacks(to_near, far_queued);
    all.connect = [this](std::uint64_t epoch) {
      epochs.push_back(epoch);
      if (refuse) return UniqueFd();
      auto [ours, theirs] = connected();
      accepted.push_back(std::move(theirs));
      return std::move(ours);
    };
    return {loop, all};
  }

  // Lets messages travel and the loop run until nothing moves any more.
  void settle() {
    for (int idle = 0; idle < 3; ++idle) {
      loop.run_once(milliseconds(1));
      for (; !to_far.empty(); to_far.pop_front(), idle = 0) {
        most_under_way = std::max(most_under_way, bytes_in(to_far));
        far.on_message(to_far.front());
      }
      for (; !to_near.empty(); to_near.pop_front(), idle = 0) near.on_message(to_near.front());
    }
  }

  static std::size_t bytes_in(const std::deque<std::string>& messages) {
    std::size_t total = 0;
    for (const std::string& text : messages) total += decode_stream_message(text).bytes.size();
    return total;
  }

  /// A stream with the worker's socket; the other one becomes accepted[n].
  UniqueFd open(std::uint64_t epoch = 1) {
    auto [ours, theirs] = connected();
    near.add(std::move(ours), epoch);
    settle();
    return std::move(theirs);
  }

  EventLoop loop;
  std::deque<std::string> to_far, to_near;
  std::size_t near_queued = 0, far_queued = 0, most_under_way = 0;
  bool refuse = false;
  std::vector<std::uint64_t> epochs;
  std::vector<UniqueFd> accepted;
  StreamBundle near{loop, callbacks(to_far, near_queued)};
  StreamBundle far = make_far();
};

TEST(StreamMessage, every_kind_survives_the_way_and_back) {
  for (const StreamMessage& message :
       {StreamMessage{Kind::open, 1, 7, {}}, StreamMessage{Kind::data, 2, 0, "x\0y"},
        StreamMessage{Kind::end, ~std::uint64_t{0}, 0, {}}, StreamMessage{Kind::reset, 3, 0, {}},
        StreamMessage{Kind::taken, 4, 1 << 20, {}}}) {
    const std::string text = encode(message);
    EXPECT_TRUE(is_stream_message(text));
    EXPECT_EQ(decode_stream_message(text), message);
  }
  EXPECT_FALSE(is_stream_message("{\"kind\":\"beat\"}"));
  EXPECT_FALSE(is_stream_message(""));
}

TEST(StreamMessage, what_is_cut_short_or_too_long_or_unknown_is_refused) {
  const std::string open = encode({.kind = Kind::open, .stream = 1, .number = 2, .bytes = {}});
  for (std::size_t length = 0; length < open.size(); ++length) {
    EXPECT_THROW(decode_stream_message(open.substr(0, length)), InvalidArgument) << length;
  }
  EXPECT_THROW(decode_stream_message(open + "x"), InvalidArgument);
  const std::string data = encode({.kind = Kind::data, .stream = 1, .number = 0, .bytes = "x"});
  EXPECT_THROW(decode_stream_message(data.substr(0, data.size() - 1)), InvalidArgument);
  EXPECT_THROW(decode_stream_message(data + std::string(kStreamMessageBytes, 'x')),
               InvalidArgument);
  EXPECT_THROW(decode_stream_message("\x06" + data.substr(1)), InvalidArgument);
  EXPECT_THROW(decode_stream_message(std::string(1, '\0') + data.substr(1)), InvalidArgument);
}

TEST_F(StreamBundleTest, bytes_pass_both_ways_on_their_own_streams) {
  const UniqueFd one = open(5), other = open(6);
  EXPECT_EQ(epochs, (std::vector<std::uint64_t>{5, 6}));
  write_all(one, "from one");
  write_all(other, "from other");
  write_all(accepted[0], "to one");
  settle();
  EXPECT_EQ(read_some(accepted[0]), "from one");
  EXPECT_EQ(read_some(accepted[1]), "from other");
  EXPECT_EQ(read_some(one), "to one");
}

TEST_F(StreamBundleTest, who_writes_no_more_may_still_be_answered) {
  const UniqueFd socket = open();
  write_all(socket, "last");
  ::shutdown(socket.get(), SHUT_WR);
  settle();
  EXPECT_EQ(read_some(accepted[0]), "last");
  EXPECT_TRUE(at_end(accepted[0]));
  write_all(accepted[0], "answer");
  accepted.clear();
  settle();
  EXPECT_EQ(read_some(socket), "answer");
  EXPECT_TRUE(at_end(socket));
  EXPECT_EQ(near.size(), 0u);
  EXPECT_EQ(far.size(), 0u);
}

TEST_F(StreamBundleTest, a_socket_that_is_closed_ends_the_stream_at_the_other_end) {
  UniqueFd socket = open();
  socket.reset();
  settle();
  EXPECT_TRUE(at_end(accepted[0]));
  accepted.clear();
  settle();
  EXPECT_EQ(near.size() + far.size(), 0u);
}

TEST_F(StreamBundleTest, a_slow_reader_holds_up_its_own_stream_only) {
  const UniqueFd slow = open(), quick = open();
  std::string sent;
  // Until nothing more is taken: the window, and what the kernel holds.
  for (std::size_t taken = 1; taken > 0;) {
    const std::string piece(10'000, static_cast<char>('a' + sent.size() / 10'000 % 26));
    taken = write_some(slow, piece);
    sent.append(piece, 0, taken);
    settle();
  }
  EXPECT_GT(sent.size(), StreamBundle::kWindowBytes);
  EXPECT_LE(most_under_way, StreamBundle::kWindowBytes);
  write_all(quick, "passes");
  settle();
  EXPECT_EQ(read_some(accepted[1]), "passes");
  std::string received;
  for (std::string piece = read_some(accepted[0]); !piece.empty(); piece = read_some(accepted[0])) {
    received += piece;
    settle();
  }
  EXPECT_EQ(received, sent);
}

TEST_F(StreamBundleTest, sockets_are_not_read_while_the_link_has_enough_to_send) {
  const UniqueFd socket = open();
  near_queued = StreamBundle::kLinkBytes;
  write_all(socket, "waits");
  settle();
  EXPECT_EQ(read_some(accepted[0]), "");
  near_queued = 0;
  near.on_drained();
  settle();
  EXPECT_EQ(read_some(accepted[0]), "waits");
}

TEST_F(StreamBundleTest, a_stream_of_another_epoch_is_closed_where_it_began) {
  refuse = true;
  const UniqueFd socket = open();
  EXPECT_TRUE(at_end(socket));
  EXPECT_EQ(near.size(), 0u);
}

TEST_F(StreamBundleTest, closing_all_is_told_where_the_link_still_is) {
  const UniqueFd one = open(), other = open();
  near.close_all(/*tell=*/true);
  settle();
  EXPECT_TRUE(at_end(one));
  EXPECT_TRUE(at_end(accepted[1]));
  EXPECT_EQ(far.size(), 0u);
}

TEST_F(StreamBundleTest, what_an_honest_other_end_never_sends_is_refused) {
  const UniqueFd socket = open();
  const auto say = [&](Kind kind, std::uint64_t stream, std::uint64_t number,
                       std::string_view bytes = {}) {
    far.on_message(encode({.kind = kind, .stream = stream, .number = number, .bytes = bytes}));
  };
  EXPECT_THROW(say(Kind::open, 1, 1), InvalidArgument);   // twice
  EXPECT_THROW(say(Kind::taken, 1, 1), InvalidArgument);  // nothing was sent
  EXPECT_THROW(near.on_message(encode({Kind::open, 9, 1, {}})), InvalidArgument);
  const std::string piece(kStreamMessageBytes, 'x');
  EXPECT_THROW(
      {
        for (int i = 0; i < 100; ++i) say(Kind::data, 1, 0, piece);  // nobody reads it
      },
      InvalidArgument);
  say(Kind::end, 1, 0);
  EXPECT_THROW(say(Kind::data, 1, 0, "more"), InvalidArgument);
  say(Kind::data, 77, 0, "of a stream that is gone");
  say(Kind::reset, 1, 0);
  EXPECT_EQ(far.size(), 0u);
}

}  // namespace
}  // namespace lockstep
