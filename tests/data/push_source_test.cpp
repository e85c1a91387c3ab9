#include "lockstep/push_source.h"

#include <atomic>
#include <memory>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

using lockstep::InvalidArgument;
using lockstep::PushSource;

TEST(PushSource, gives_samples_in_the_order_of_pushes) {
  PushSource<std::unique_ptr<int>> source(3);
  EXPECT_TRUE(source.push(std::make_unique<int>(1)));
  EXPECT_TRUE(source.push(std::make_unique<int>(2)));
  EXPECT_EQ(source.waiting(), 2u);
  EXPECT_EQ(**source.next({}), 1);
  EXPECT_EQ(**source.next({}), 2);
}

TEST(PushSource, holds_the_producer_back_when_it_is_full) {
  PushSource<int> source(2);
  EXPECT_TRUE(source.try_push(0));
  EXPECT_TRUE(source.try_push(1));
  EXPECT_FALSE(source.try_push(2));
  std::atomic<int> pushed = 2;
  std::thread producer([&] {
    for (int i = 2; i < 1000; ++i) {
      ASSERT_TRUE(source.push(i));
      ++pushed;
    }
    source.close();
  });
  int taken = 0;
  while (const auto sample = source.next({})) {
    EXPECT_EQ(*sample, taken++);
    // The one taken made room for one more; a further push may have happened but not been counted.
    EXPECT_LE(pushed, taken + 2);
  }
  producer.join();
  EXPECT_EQ(taken, 1000);
}

TEST(PushSource, takes_from_several_producers) {
  PushSource<int> source(4);
  std::vector<std::thread> producers;
  for (int producer = 0; producer < 3; ++producer) {
    producers.emplace_back([&source, producer] {
      for (int i = 0; i < 500; ++i) source.push(producer * 500 + i);
    });
  }
  std::set<int> seen;
  while (seen.size() < 1500) seen.insert(*source.next({}));
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(source.waiting(), 0u);
}

TEST(PushSource, after_close_what_waits_is_still_given_and_nothing_is_taken) {
  PushSource<int> source(2);
  source.push(1);
  source.push(2);
  std::thread blocked([&] { EXPECT_FALSE(source.push(3)); });
  source.close();
  blocked.join();
  EXPECT_TRUE(source.closed());
  EXPECT_FALSE(source.push(4));
  EXPECT_FALSE(source.try_push(5));
  EXPECT_EQ(source.next({}), 1);
  EXPECT_EQ(source.next({}), 2);
  EXPECT_EQ(source.next({}), std::nullopt);
}

TEST(PushSource, a_reader_that_waits_can_be_stopped) {
  PushSource<int> source(1);
  std::stop_source stop;
  std::thread reader([&] { EXPECT_EQ(source.next(stop.get_token()), std::nullopt); });
  stop.request_stop();
  reader.join();
}

TEST(PushSource, without_room_for_a_sample_is_refused) {
  EXPECT_THROW(PushSource<int>(0), InvalidArgument);
}
