#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>

#include "rpc/segment.h"
#include "rpc/sockets.h"
#include "rpc/wire.h"
#include "tests/rpc/two_agents.h"

// What an agent does with a peer that keeps to the format and to nothing else.
namespace lockstep::rpc {
namespace {

using namespace std::chrono_literals;

class RudePeer {
 public:
  explicit RudePeer(TwoAgents& agents) {
    const auto address = PeerAddress::parse(*agents.directory->find("agent/server"));
    socket_ = connect_unix(address->unix_name, std::chrono::steady_clock::now() + 10s).socket;
    send(FrameKind::hello, encode(HelloFrame{.max_calls = 1000, .name = "rude"}));
  }

  void send(FrameKind kind, const std::string& content, int descriptor = -1) {
    std::string frame = frame_header(kind, content.size()) + content;
    iovec part{.iov_base = frame.data(), .iov_len = frame.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &descriptor, sizeof(int));
    }
    sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  }

  void call(const std::string& function, const std::string& signature) {
    MessageHead head;
    head.id = ++calls_;
    head.timeout_ms = 60000;
    head.function = function;
    head.signature = signature;
    send(FrameKind::call, encode(head));
  }

  /// Whether the agent has ended the connection. Nothing is read for it.
  bool cut_off() const {
    pollfd waiting{.fd = socket_.get(), .events = 0, .revents = 0};
    return poll(&waiting, 1, 0) == 1 && (waiting.revents & POLLHUP) != 0;
  }

 private:
  UniqueFd socket_;
  std::uint64_t calls_ = 0;
};

// Pages of it are made when someone touches them.
UniqueFd sparse_memory(std::size_t bytes) {
  UniqueFd memory(memfd_create("rude", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    return {};
  }
  return memory;
}

TEST(RpcRudePeer, one_that_reads_no_answers_has_few_of_them_kept) {
  TwoAgents agents("unix", {.max_calls = 4});
  std::atomic<int> ran = 0;
  agents.server->serve("large", [&] {
    ++ran;
    return std::string(1 << 20, 'x');
  });
  RudePeer peer(agents);
  for (int count = 1; count <= 30 && !peer.cut_off(); ++count) {
    peer.call("large", signature<std::string>());
    ASSERT_TRUE(eventually([&] { return ran == count || peer.cut_off(); }));
  }
  EXPECT_TRUE(peer.cut_off());
  EXPECT_LE(ran, 5);
}

TEST(RpcRudePeer, memory_that_it_shares_takes_none_until_it_is_looked_at) {
  TwoAgents agents("shared");
  std::atomic<int> ran = 0;
  agents.server->serve("note", [&] { ++ran; });
  const std::size_t bytes = std::size_t{256} << 20;
  const UniqueFd memory = sparse_memory(bytes);
  ASSERT_TRUE(memory);
  RudePeer peer(agents);
  peer.send(FrameKind::segment, encode(SegmentFrame{.id = 1, .bytes = bytes}), memory.get());
  peer.call("note", signature<void>());
  ASSERT_TRUE(eventually([&] { return ran == 1; }));
  struct stat status {};
  ASSERT_EQ(fstat(memory.get(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
}

TEST(RpcRudePeer, it_cannot_share_more_memory_than_there_is) {
  TwoAgents agents("shared");
  const std::size_t bytes = physical_memory() / 4096 * 4096 + 4096;
  const UniqueFd memory = sparse_memory(bytes);
  if (!memory) GTEST_SKIP() << "no memfd of " << bytes << " bytes";
  RudePeer peer(agents);
  peer.send(FrameKind::segment, encode(SegmentFrame{.id = 1, .bytes = bytes}), memory.get());
  EXPECT_TRUE(eventually([&] { return peer.cut_off(); }));
}

}  // namespace
}  // namespace lockstep::rpc
