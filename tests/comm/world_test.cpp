#include "lockstep/world.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>

#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include "comm/peers.h"
#include "core/unique_fd.h"
#include "lockstep/environment.h"
#include "lockstep/error.h"
#include "lockstep/rank0_first.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/free_port.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace std::chrono_literals;
using lockstep::testing::free_port;
using lockstep::testing::TemporaryFolder;
using lockstep::testing::this_rank;

namespace {

// What init() says when it refuses.
template <typename Expected>
std::string refusal(const InitOptions& options) {
  try {
    World world = init(options);
  } catch (const Expected& error) {
    return error.what();
  }
  return "accepted";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(World, a_process_started_by_hand_is_a_world_of_one) {
  World world = init();
  EXPECT_EQ(world.rank(), 0);
  EXPECT_EQ(world.world_size(), 1);
  EXPECT_EQ(world.device().is_cpu(), !torch::cuda::is_available());
  world.barrier();
}

TEST(World, a_rank_outside_the_world_is_refused_with_both_values) {
  const auto text =
      refusal<InvalidArgument>({.init_method = "tcp://127.0.0.1:1", .rank = 5, .world_size = 2});
  EXPECT_TRUE(has(text, "rank 5") && has(text, "world_size 2")) << text;
}

TEST(World, a_world_size_of_zero_is_refused) {
  const auto text =
      refusal<InvalidArgument>({.init_method = "tcp://127.0.0.1:1", .rank = 0, .world_size = 0});
  EXPECT_TRUE(has(text, "world_size is 0")) << text;
}

TEST(World, rank_without_world_size_is_refused) {
  EXPECT_TRUE(has(refusal<InvalidArgument>({.rank = 1}), "world_size is not"));
}

TEST(World, an_unknown_init_method_is_refused_by_name) {
  EXPECT_TRUE(has(refusal<InvalidArgument>({.init_method = "http://x", .rank = 0, .world_size = 1}),
                  "http://x"));
  EXPECT_TRUE(
      has(refusal<InvalidArgument>({.init_method = "tcp://host:port", .rank = 0, .world_size = 1}),
          "'port'"));
}

TEST(World, an_unknown_backend_is_refused_by_name) {
  EXPECT_TRUE(has(refusal<InvalidArgument>({.backend = "smoke"}), "'smoke'"));
}

TEST(World, nccl_without_cuda_is_refused) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_TRUE(has(refusal<InvalidArgument>({.backend = "nccl", .device = "cpu"}), "backend nccl"));
}

TEST(World, a_device_that_does_not_exist_is_refused_by_name) {
  EXPECT_TRUE(has(refusal<InvalidArgument>({.device = "cuda:7"}), "cuda:7"));
  EXPECT_TRUE(has(refusal<InvalidArgument>({.device = "tpu"}), "'tpu'"));
}

TEST(World, a_port_in_use_is_told_in_one_line_with_its_number) {
  const Store taken = Store::tcp({.serve = true});
  const auto text = refusal<InvalidArgument>(
      {.init_method = concat("tcp://127.0.0.1:", taken.port()), .rank = 0, .world_size = 1});
  EXPECT_TRUE(has(text, std::to_string(taken.port())) && has(text, "in use")) << text;
  EXPECT_FALSE(has(text, "\n")) << text;
}

TEST(World, a_store_that_ends_while_it_is_greeted_is_looked_for_again) {
  const int port = free_port();
  UniqueFd old_store(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  setsockopt(old_store.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(old_store.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(old_store.get(), 8), 0);

  auto client =
      std::async(std::launch::async, [&] { return Store::tcp({.port = port, .timeout = 30s}); });
  for (char byte = 0;;) {  // a probe says nothing, the client does
    const UniqueFd guest(accept(old_store.get(), nullptr, nullptr));
    if (read(guest.get(), &byte, 1) == 1) break;
  }
  old_store.reset();
  Store next = Store::tcp({.port = port, .serve = true});
  Store found = client.get();
  found.set("word", "heard");
  EXPECT_EQ(next.get("word"), "heard");
}

TEST(World, a_key_that_is_deleted_is_gone) {
  Store store = Store::tcp({.serve = true});
  store.set("key", "value");
  EXPECT_TRUE(store.delete_key("key"));
  EXPECT_FALSE(store.check({"key"}));
  EXPECT_FALSE(store.delete_key("key"));
}

TEST(World, a_clone_of_a_store_does_not_wait_for_its_calls) {
  Store store = Store::tcp({.serve = true});
  Store clone = store.clone();
  EXPECT_EQ(clone.port(), store.port());
  auto waiting = std::async(std::launch::async, [&] { store.wait({"key"}, 60s); });
  EXPECT_EQ(waiting.wait_for(100ms), std::future_status::timeout);
  clone.set("key", "value");
  waiting.get();
  EXPECT_EQ(store.get("key"), "value");
}

TEST(World, a_store_on_loopback_cannot_be_reached_from_outside_loopback) {
  const Store store = Store::tcp({.serve = true});
  EXPECT_GT(store.port(), 0);
  EXPECT_THROW(Store::tcp({.host = "127.0.0.2", .port = store.port(), .timeout = 300ms}), Timeout);
}

TEST(World, ranks_that_do_not_arrive_are_named) {
  const TemporaryFolder folder;
  try {
    World world = init({.init_method = concat("file://", folder / "store"),
                        .rank = 1,
                        .world_size = 4,
                        .rendezvous_timeout = 500ms});
    FAIL() << "a world of 4 formed with one rank";
  } catch (const Timeout& timeout) {
    EXPECT_EQ(timeout.missing(), (std::vector<int>{0, 2, 3}));
    EXPECT_TRUE(has(timeout.what(), "ranks 0, 2, 3 of 4")) << timeout.what();
  }
}

TEST(World, an_absent_rank_0_is_named_by_those_who_look_for_its_store) {
  try {
    World world = init({.init_method = concat("tcp://127.0.0.1:", free_port()),
                        .rank = 1,
                        .world_size = 2,
                        .rendezvous_timeout = 300ms});
    FAIL() << "a world formed without rank 0";
  } catch (const Timeout& timeout) {
    EXPECT_EQ(timeout.missing(), (std::vector<int>{0}));
    EXPECT_TRUE(has(timeout.what(), "rank 0 did not arrive")) << timeout.what();
  }
}

RANKS_TEST(World, ranks_find_each_other_through_the_environment, 3) {
  World world = init();
  EXPECT_EQ(world.rank(), this_rank());
  EXPECT_EQ(world.world_size(), 3);
  EXPECT_EQ(world.local_rank(), this_rank());
  EXPECT_EQ(world.group().all_gather_string(concat("r", world.rank())),
            (std::vector<std::string>{"r0", "r1", "r2"}));
}

RANKS_TEST(World, two_worlds_can_live_one_after_the_other, 2) {
  for (int turn = 0; turn < 3; ++turn) {
    World world = init();
    EXPECT_EQ(world.epoch(), turn);
    EXPECT_EQ(world.group().broadcast_string(concat("turn ", turn, " of ", world.rank())),
              concat("turn ", turn, " of 0"));
  }
}

RANKS_TEST(World, worlds_whose_rank_0_hosts_the_store_can_follow_each_other, 2) {
  // The port travels through the first world.
  World first = init();
  const int port = std::stoi(
      first.group().broadcast_string(first.rank() == 0 ? std::to_string(free_port()) : ""));
  for (int turn = 0; turn < 3; ++turn) {
    World world = init({.init_method = concat("tcp://127.0.0.1:", port),
                        .rank = this_rank(),
                        .world_size = 2,
                        .rendezvous_timeout = 20s});
    EXPECT_EQ(world.group().broadcast_string(concat(world.rank()), 1), "1");
  }
}

RANKS_TEST(World, a_file_is_enough_to_meet, 2) {
  World first = init();
  std::string path;
  std::optional<TemporaryFolder> folder;
  if (this_rank() == 0) path = folder.emplace() / "store";
  path = first.group().broadcast_string(path);
  {
    World world =
        init({.init_method = concat("file://", path), .rank = this_rank(), .world_size = 2});
    world.barrier();
  }
  first.barrier();
}

RANKS_TEST(World, a_given_store_is_used, 2) {
  const Store store = Store::tcp({.port = std::atoi(std::getenv("MASTER_PORT"))});
  World world = init({.store = store, .rank = this_rank(), .world_size = 2});
  world.barrier();
  if (this_rank() == 0) world.store().set("word", "from rank 0");
  EXPECT_EQ(world.store().get("word"), "from rank 0");
}

RANKS_TEST(World, ranks_that_disagree_about_the_size_are_told_both_values, 2) {
  // Rank 1 comes second, so it is the one that hears about it.
  Store store = Store::tcp({.port = std::atoi(std::getenv("MASTER_PORT"))});
  if (this_rank() == 0) {
    const auto text =
        refusal<Timeout>({.store = store, .rank = 0, .world_size = 2, .rendezvous_timeout = 3s});
    EXPECT_TRUE(has(text, "rank 1 of 2 did not arrive")) << text;
  } else {
    store.wait({"lockstep/world_size"}, 20s);
    const auto text = refusal<InvalidArgument>({.store = store, .rank = 1, .world_size = 3});
    EXPECT_TRUE(has(text, "of 3") && has(text, "has 2")) << text;
  }
}

RANKS_TEST(World, a_rank_that_is_taken_is_refused, 2) {
  Store store = Store::tcp({.port = std::atoi(std::getenv("MASTER_PORT"))});
  if (this_rank() == 0) {
    EXPECT_TRUE(has(
        refusal<Timeout>({.store = store, .rank = 0, .world_size = 2, .rendezvous_timeout = 3s}),
        "rank 1 of 2"));
  } else {
    store.wait({"lockstep/identity/0"}, 20s);
    const auto text = refusal<InvalidArgument>({.store = store, .rank = 0, .world_size = 2});
    EXPECT_TRUE(has(text, "rank 0") && has(text, "is taken by process")) << text;
  }
}

RANKS_TEST(World, rank_0_goes_first, 3) {
  World world = init();
  bool done_before = false;
  rank0_first(world, [&] { done_before = world.store().add("count", 1) > 1; });
  EXPECT_EQ(done_before, world.rank() != 0);
  local_rank0_first(world, [&] { done_before = world.store().add("local", 1) > 1; });
  EXPECT_EQ(done_before, world.rank() != 0);
}

RANKS_TEST(World, a_failure_of_rank_0_reaches_those_who_wait_for_it, 2) {
  World world = init();
  const auto section = [&] {
    ASSERT_EQ(world.rank(), 0) << "ran after rank 0 had failed";
    throw Error("the disk is full");
  };
  if (world.rank() == 0) {
    EXPECT_THROW(rank0_first(world, section), Error);
  } else {
    try {
      rank0_first(world, section);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const RemoteError& error) {
      EXPECT_EQ(error.rank(), 0);
      EXPECT_TRUE(has(error.what(), "the disk is full"));
    }
  }
  world.barrier();
}

RANKS_TEST(World, a_destroyed_world_refuses_its_groups, 2) {
  World world = init();
  ProcessGroup group = world.group();
  world.barrier();
  world.destroy();
  world.destroy();
  EXPECT_THROW(group.barrier(), Aborted);
}

TEST(Peers, the_first_rank_of_a_node_is_the_lowest_that_is_there) {
  // The first process of node 1 is left out, and all of node 0's.
  const Peers peers({PeerIdentity{.node_rank = 1}, PeerIdentity{.node_rank = 1}, std::nullopt,
                     PeerIdentity{.node_rank = 2}});
  EXPECT_EQ(peers.first_on_node(1), 0);
  EXPECT_EQ(peers.first_on_node(2), 3);
  EXPECT_EQ(peers.first_on_node(0), std::nullopt);
  const auto read = PeerIdentity::parse(PeerIdentity::of_this_process(5).to_text());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->node_rank, 5);
  EXPECT_EQ(read->has_ended(), false);
}
