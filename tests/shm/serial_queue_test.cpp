#include "shm/serial_queue.h"

#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

using lockstep::SerialQueue;

TEST(SerialQueue, keeps_the_order_of_tasks_here_and_there) {
  std::vector<int> order;
  SerialQueue queue;
  for (int i = 0; i < 300; ++i) {
    if (i % 3 == 0) {
      queue.run_here([&, i] { order.push_back(i); });
    } else {
      queue.post([&, i] { order.push_back(i); });
    }
  }
  queue.run_here([] {});
  ASSERT_EQ(order.size(), 300U);
  for (int i = 0; i < 300; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(SerialQueue, runs_what_it_has_before_it_ends) {
  int ran = 0;
  {
    SerialQueue queue;
    for (int i = 0; i < 50; ++i) queue.post([&] { ++ran; });
  }
  EXPECT_EQ(ran, 50);
}

TEST(SerialQueue, may_be_destroyed_by_its_own_task) {
  auto queue = std::make_shared<SerialQueue>();
  std::atomic<bool> done = false;
  SerialQueue& handle = *queue;
  handle.post([owned = std::move(queue), &done]() mutable {
    owned.reset();
    done = true;
  });
  while (!done) std::this_thread::yield();
}
