#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/store.h"
#include "lockstep/world.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace std::chrono_literals;
using lockstep::testing::kill_this_process;

// Gloo forgets a message that is half written or half read when its connection ends. All of these
// would end with the test's time-out.
namespace {

const std::map<std::string, std::string> kOverTcp = {{"LOCKSTEP_SHM", "0"}};
constexpr std::int64_t kLarge = 256 << 20;  // bytes: more than any socket takes at once

// A message may be through before somebody is killed; then another one is the half.
void expect_loss_of_last(const World& world, Work message, const std::function<Work()>& another) {
  try {
    for (;; message = another()) message.wait();
  } catch (const PeerLost& lost) {
    // Ranks of another machine cannot see whose process has ended.
    if (lost.peers().empty()) return;
    EXPECT_EQ(lost.peers(), std::vector<int>{world.world_size() - 1}) << lost.what();
  }
}

// Memory that another thread writes to.
void await_first_byte(const at::Tensor& tensor) {
  const auto* first = static_cast<const volatile std::uint8_t*>(tensor.data_ptr());
  while (*first == 0) std::this_thread::yield();
}

// One that left would be named, too.
void stay_until_seen(World& world) {
  if (world.rank() == 0) {
    world.store().set("seen", "1");
  } else {
    world.store().wait({"seen"}, 60s);
  }
}

void lose_the_receiver_in_the_middle() {
  World world = init();
  const int last = world.world_size() - 1;
  if (world.rank() == 0) {
    const at::Tensor data = torch::ones({kLarge}, torch::kByte);
    const auto message = [&] { return world.group().isend(data, {.peer = last}); };
    expect_loss_of_last(world, message(), message);
  } else if (world.rank() == last) {
    const at::Tensor data = torch::zeros({kLarge}, torch::kByte);
    const Work message = world.group().irecv(data, {.peer = 0});
    await_first_byte(data);
    kill_this_process();
  }
  stay_until_seen(world);
}

void lose_the_sender_in_the_middle() {
  World world = init();
  const int last = world.world_size() - 1;
  if (world.rank() == 0) {
    const pid_t sender = std::stoi(world.store().get("sender"));
    const at::Tensor data = torch::zeros({kLarge}, torch::kByte);
    const auto message = [&] { return world.group().irecv(data, {.peer = last}); };
    Work first = message();
    await_first_byte(data);
    kill(sender, SIGKILL);
    expect_loss_of_last(world, std::move(first), message);
  } else if (world.rank() == last) {
    world.store().set("sender", std::to_string(getpid()));
    const at::Tensor data = torch::ones({kLarge}, torch::kByte);
    for (;;) world.group().send(data, {.peer = 0});  // until it is killed
  }
  stay_until_seen(world);
}

}  // namespace

RANKS_TEST_WITH(HalfMessage, its_receiver_dies,
                {.count = 2, .killed = {1}, .environment = kOverTcp}) {
  lose_the_receiver_in_the_middle();
}
RANKS_TEST_WITH(HalfMessage, its_sender_dies,
                {.count = 2, .killed = {1}, .environment = kOverTcp}) {
  lose_the_sender_in_the_middle();
}
RANKS_TEST_WITH(HalfMessage, its_receiver_dies_on_another_machine,
                {.count = 3, .killed = {2}, .machines = 2}) {
  lose_the_receiver_in_the_middle();
}
RANKS_TEST_WITH(HalfMessage, its_sender_dies_on_another_machine,
                {.count = 3, .killed = {2}, .machines = 2}) {
  lose_the_sender_in_the_middle();
}

// What has been written is all there, and those who stay can still reach each other.
RANKS_TEST_WITH(HalfMessage, a_rank_may_leave_when_its_messages_are_through,
                {.count = 3, .environment = kOverTcp}) {
  World world = init();
  const at::Tensor large = torch::full({kLarge / 4}, world.rank(), torch::kByte);
  if (world.rank() == 2) {
    world.group().recv(large, {.peer = 0});
    EXPECT_EQ(large.sum().item<std::int64_t>(), 0);
    Store store = world.store();
    world.destroy();
    store.set("left", "1");
    return;
  }
  if (world.rank() == 1) {
    world.store().wait({"left"}, 60s);
    std::this_thread::sleep_for(300ms);  // in which rank 0's connections are asked about
    world.group().send(large, {.peer = 0});
    return;
  }
  Work to_leaving = world.group().isend(large.clone(), {.peer = 2});
  world.group().recv(large, {.peer = 1});
  EXPECT_EQ(large.sum().item<std::int64_t>(), kLarge / 4);
  to_leaving.wait();
}
