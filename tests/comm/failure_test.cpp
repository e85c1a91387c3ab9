#include <chrono>
#include <thread>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/store.h"
#include "lockstep/world.h"
#include "tests/support/free_port.h"
#include "tests/support/ranks.h"
#include "tests/support/survivors.h"

using namespace lockstep;
using namespace std::chrono_literals;
using lockstep::testing::await_survivors;
using lockstep::testing::free_port;
using lockstep::testing::kill_this_process;
using lockstep::testing::this_rank;

namespace {

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void expect_peer_lost(int peer, const std::function<void()>& call) {
  const double seconds = seconds_of([&] {
    try {
      call();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const PeerLost& lost) {
      EXPECT_EQ(lost.peers(), std::vector<int>{peer}) << lost.what();
      EXPECT_EQ(lost.rank(), this_rank());
      EXPECT_NE(std::string(lost.what()).find(concat("lost rank ", peer)), std::string::npos);
    }
  });
  EXPECT_LT(seconds, 20.0);  // and not the half hour of the time-out
}

}  // namespace

RANKS_TEST_WITH(Failure, a_killed_peer_is_named_by_every_survivor, {.count = 4, .killed = {2}}) {
  World world = init();
  const at::Tensor tensor = torch::ones({1 << 20});
  world.group().all_reduce(tensor);
  if (world.rank() == 2) kill_this_process();
  expect_peer_lost(2, [&] { world.group().all_reduce(tensor); });
  // Later operations say the same instead of hanging.
  expect_peer_lost(2, [&] { world.group().broadcast(tensor); });
  await_survivors(world, {2});
}

RANKS_TEST_WITH(Failure, survivors_form_a_new_world, {.count = 3, .killed = {1}}) {
  World world = init();
  const at::Tensor tensor = torch::ones({100});
  // A rank that still connects to others when one dies would fail in init().
  world.store().set(concat("up", world.rank()), "1");
  if (world.rank() == 1) {
    world.store().wait({"up0", "up2"}, 30s);
    kill_this_process();
  }
  expect_peer_lost(1, [&] { world.group().all_reduce(tensor); });
  const Store store = Store::tcp({.port = std::atoi(std::getenv("MASTER_PORT"))});
  world = init({.store = store, .rank = world.rank() / 2, .world_size = 2, .epoch = 1});
  const at::Tensor again = torch::ones({100});
  world.group().all_reduce(again);
  EXPECT_EQ(again.sum().item<float>(), 200);
}

RANKS_TEST_WITH(Failure, the_death_of_the_rank_that_hosts_the_store_is_survived,
                {.count = 3, .killed = {0}}) {
  World meeting = init();
  const auto port_of = [&](int root) {
    const std::string text = meeting.rank() == root ? std::to_string(free_port()) : "";
    return meeting.group().broadcast_string(text, root);
  };
  const std::string first_port = port_of(0), second_port = port_of(1);
  World world = init({.init_method = "tcp://127.0.0.1:" + first_port,
                      .rank = meeting.rank(),
                      .world_size = 3,
                      .rendezvous_timeout = 20s});
  world.barrier();
  meeting.destroy();
  if (this_rank() == 0) kill_this_process();
  expect_peer_lost(0, [&] { world.barrier(); });
  world = init({.init_method = "tcp://127.0.0.1:" + second_port,
                .rank = this_rank() - 1,
                .world_size = 2,
                .rendezvous_timeout = 20s,
                .epoch = 1});
  EXPECT_EQ(world.group().all_gather_string(concat(world.rank())),
            (std::vector<std::string>{"0", "1"}));
}

RANKS_TEST(Failure, an_operation_that_others_do_not_join_times_out, 2) {
  World world = init({.timeout = 1s});
  if (world.rank() == 0) {
    EXPECT_THROW(world.group().all_reduce(torch::ones({4})), Timeout);
    world.store().set("seen", "1");
  } else {
    world.store().wait({"seen"}, 20s);
  }
}

RANKS_TEST(Failure, a_monitored_barrier_names_the_missing_on_every_rank, 3) {
  World world = init();
  world.monitored_barrier();
  if (world.rank() == 1) {
    world.store().wait({"seen0", "seen2"}, 30s);
    return;
  }
  // Its time begins with rank 0.
  if (world.rank() == 2) world.store().set("comes", "1");
  if (world.rank() == 0) world.store().wait({"comes"}, 30s);
  try {
    world.monitored_barrier({.timeout = 500ms});
    ADD_FAILURE() << "the barrier opened";
  } catch (const Timeout& timeout) {
    EXPECT_EQ(timeout.missing(), std::vector<int>{1}) << timeout.what();
    EXPECT_NE(std::string(timeout.what()).find("rank 1 did not arrive within 0.5 s"),
              std::string::npos)
        << timeout.what();
  }
  world.store().set(concat("seen", world.rank()), "1");
}

RANKS_TEST(Failure, abort_ends_what_is_in_flight_here_and_at_the_peers, 2) {
  World world = init();
  world.barrier();
  if (world.rank() == 0) {
    std::thread other([&] {
      // Rank 1 is in its operation when it has said so and a moment has passed; being early would
      // only make the abort come first, which must give the same errors.
      world.store().wait({"waiting"}, 20s);
      world.abort();
    });
    EXPECT_THROW(world.group().recv(torch::empty({4}), {.peer = 1}), Aborted);
    other.join();
    EXPECT_THROW(world.group().all_reduce(torch::ones({4})), Aborted);
  } else {
    world.store().set("waiting", "1");
    try {
      world.group().all_reduce(torch::ones({4}));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const PeerLost& lost) {
      EXPECT_TRUE(lost.peers().empty()) << lost.what();  // rank 0 is alive
    }
  }
  // After an abort, too, a new world can be formed.
  world = init({.epoch = 7});
  world.barrier();
}

RANKS_TEST(Failure, abort_returns_when_no_tensor_is_touched_any_more, 2) {
  World world = init();
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  if (world.rank() == 0) {
    for (int i = 0; i < 8; ++i) {
      tensors.push_back(torch::ones({1 << 18}));
      works.push_back(world.group().all_reduce(tensors.back(), {.async_op = true}));
    }
    EXPECT_LT(seconds_of([&] { world.abort(); }), 10.0);
    for (auto& work : works) {
      EXPECT_THROW(work.wait(), Aborted);
      EXPECT_TRUE(work.is_completed());
    }
    world.store().set("aborted", "1");
  } else {
    world.store().wait({"aborted"}, 30s);
  }
}
