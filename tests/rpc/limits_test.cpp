#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "rpc/event_loop.h"
#include "rpc/outbox.h"
#include "rpc/segment.h"
#include "tests/rpc/two_agents.h"

// What an agent and its parts do at their limits and at their end.
namespace lockstep::rpc {
namespace {

Blob marked_memory(std::size_t bytes, int mark) {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes, static_cast<std::byte>(mark));
  return {.data = memory->data(), .bytes = bytes, .owner = memory};
}

bool is_marked(const Blob& blob, std::size_t bytes, int mark) {
  const auto value = static_cast<std::byte>(mark);
  return blob.bytes == bytes && blob.data[0] == value && blob.data[bytes - 1] == value;
}

class Shelf {
 public:
  std::size_t size_of(Blob blob) { return blob.bytes; }
};

void serve_shelf(Agent& agent) {
  agent.serve_class<Shelf>("Shelf", [](auto& each) { each.method("size_of", &Shelf::size_of); });
}

class LargeMessages : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, LargeMessages, testing::Values("unix", "sealed", "handshake"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(LargeMessages, leave_whole_before_an_agent_that_closes_says_goodbye) {
  TwoAgents agents(GetParam());
  constexpr std::size_t kBytes = 12 << 20;  // more than sockets keep
  std::promise<void> entered;
  agents.server->serve("large", [&] {
    entered.set_value();
    return marked_memory(kBytes, 5);
  });
  const auto answer = agents.caller->call<Blob>({"server", "large"});
  entered.get_future().wait();
  agents.server->close();
  EXPECT_TRUE(is_marked(answer.get(), kBytes, 5));
}

TEST_P(LargeMessages, to_a_method_keep_its_object) {
  TwoAgents agents(GetParam());
  serve_shelf(*agents.server);
  const auto size = [&] {
    const auto shelf = agents.caller->create<Shelf>({"server", "Shelf"});
    return shelf.call<std::size_t>("size_of", marked_memory(12 << 20, 1));
  }();
  EXPECT_EQ(size.get(), std::size_t{12} << 20);
}

TEST(RpcLimits, a_method_is_refused_what_a_function_is_and_its_object_stays) {
  TwoAgents agents("unix", {.max_message_bytes = 100000});
  serve_shelf(*agents.server);
  const auto shelf = agents.caller->create<Shelf>({"server", "Shelf"});
  EXPECT_THROW(shelf.call<std::size_t>("size_of", marked_memory(200000, 1)), InvalidArgument);
  EXPECT_EQ(shelf.call<std::size_t>("size_of", marked_memory(1000, 1)).get(), 1000u);
}

TEST(RpcLimits, a_lost_machine_is_noticed_at_both_ends_of_a_connection) {
  TwoAgents agents("sealed");
  agents.server->serve("one", [] { return 1; });
  EXPECT_EQ(agents.caller->call<int>({"server", "one"}).get(), 1);
  int connections = 0;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    if (peer.ss_family != AF_INET) continue;
    ++connections;
    const auto option = [descriptor](int level, int name) {
      int value = 0;
      socklen_t size = sizeof(value);
      getsockopt(descriptor, level, name, &value, &size);
      return value;
    };
    EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 30000);
    EXPECT_LE(option(IPPROTO_TCP, TCP_KEEPIDLE) +
                  option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT),
              30);
  }
  EXPECT_EQ(connections, 2);
}

TEST(RpcLimits, all_blobs_of_a_message_share_one_descriptor) {
  TwoAgents agents("shared");
  agents.server->serve("echo", [](std::vector<Blob> blobs) { return blobs; });
  std::vector<Blob> sent;
  for (int count = 0; count < 200; ++count) sent.push_back(marked_memory(20001, count));
  agents.caller->call<std::vector<Blob>>({"server", "echo"}, sent).get();
  const int before = count_descriptors();
  std::vector<std::vector<Blob>> kept;
  for (int count = 0; count < 5; ++count) {
    kept.push_back(agents.caller->call<std::vector<Blob>>({"server", "echo"}, sent).get());
  }
  EXPECT_LT(count_descriptors() - before, 20);
  for (const std::vector<Blob>& got : kept) {
    ASSERT_EQ(got.size(), sent.size());
    for (int count = 0; count < 200; ++count) {
      const Blob& blob = got[static_cast<std::size_t>(count)];
      EXPECT_TRUE(is_marked(blob, 20001, count));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blob.data) % 64, 0u);
    }
  }
}

TEST(RpcLimits, few_idle_segments_are_kept) {
  std::vector<std::uint64_t> freed;
  const auto pool =
      SegmentPool::create(1 << 30, [&](std::uint64_t segment) { freed.push_back(segment); });
  std::vector<std::shared_ptr<Segment>> segments;
  for (std::size_t count = 0; count < SegmentPool::kMaxIdle + 10; ++count) {
    segments.push_back(pool->take(1000));
    ASSERT_TRUE(segments.back());
  }
  const std::size_t each = segments.front()->bytes();
  segments.clear();
  EXPECT_EQ(pool->idle_bytes(), SegmentPool::kMaxIdle * each);
  EXPECT_EQ(freed.size(), 10u);
}

// Letting go of something may lead back to the connection, whose lock is held meanwhile.
TEST(RpcLimits, an_outbox_lets_go_of_nothing_before_it_is_told_to) {
  Outbox outbox;
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = owner;
  Payload payload{.bytes = std::string(100000, 'x'), .blobs = {}};
  payload.blobs.push_back({.data = nullptr, .bytes = 0, .owner = std::move(owner)});
  MessageHead head;
  head.payload_bytes = payload.bytes.size();
  head.blobs.push_back({});
  outbox.push_message(head, std::move(payload));
  EXPECT_FALSE(watched.expired());
  outbox.take_spent();
  EXPECT_TRUE(watched.expired());
}

TEST(RpcLimits, a_segment_lives_until_its_descriptor_is_sent) {
  const auto pool = SegmentPool::create(0, {});
  Outbox outbox;
  outbox.push(FrameKind::segment, "content", pool->take(1000));
  EXPECT_EQ(pool->used(), 1u);
  int descriptor = -1;
  std::size_t bytes = 0;
  for (const iovec& part : outbox.next(8, &descriptor)) bytes += part.iov_len;
  EXPECT_GE(descriptor, 0);
  outbox.written(bytes);
  EXPECT_EQ(pool->used(), 1u);
  outbox.take_spent();
  EXPECT_EQ(pool->used(), 0u);
}

TEST(RpcLimits, an_answer_has_left_with_its_last_byte) {
  Outbox outbox;
  MessageHead head;
  head.kind = FrameKind::answer;
  head.payload_bytes = 700000;
  outbox.push_message(head, {.bytes = std::string(700000, 'x'), .blobs = {}});
  while (!outbox.empty()) {
    EXPECT_EQ(outbox.take_answers_written(), 0);
    int descriptor = -1;
    std::size_t bytes = 0;
    for (const iovec& part : outbox.next(8, &descriptor)) bytes += part.iov_len;
    outbox.written(bytes);
  }
  EXPECT_EQ(outbox.take_answers_written(), 1);
  head.payload_bytes = 5;
  outbox.push_message(head, {.bytes = "small", .blobs = {}});
  outbox.push(FrameKind::failure, "");
  outbox.written(outbox.bytes());
  EXPECT_EQ(outbox.take_answers_written(), 2);
}

TEST(RpcLimits, a_loop_that_has_ended_takes_nothing_more) {
  class Deaf : public EventLoop::Handler {
    void on_events(std::uint32_t) override {}
    EventLoop::Time on_time(EventLoop::Time) override { return EventLoop::Time::max(); }
  };
  EventLoop loop;
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  loop.remove(loop.add(socket.get(), EPOLLIN, std::make_shared<Deaf>()), socket.get());
  loop.stop();
  EXPECT_THROW(loop.add(socket.get(), EPOLLIN, std::make_shared<Deaf>()), ShutDown);
}

}  // namespace
}  // namespace lockstep::rpc
