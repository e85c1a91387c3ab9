#include "lockstep/loader.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "lockstep/distributed_sampler.h"
#include "lockstep/error.h"

using lockstep::BatchAddress;
using lockstep::Dealing;
using lockstep::Delivered;
using lockstep::DistributedSampler;
using lockstep::InvalidArgument;
using lockstep::Loader;
using lockstep::LoaderOptions;
using lockstep::LoaderState;
using lockstep::Random;
using lockstep::SampleError;
using lockstep::Timeout;

namespace {

using Indices = std::vector<std::int64_t>;

// Sample i is the number i, and what it drew.
struct Numbers {
  std::int64_t count = 0;

  std::int64_t size() const { return count; }
  std::pair<std::int64_t, double> get(std::int64_t index, Random& random) const {
    return {index, random.uniform()};
  }
};

Indices values(const at::Tensor& tensor) {
  const auto* first = tensor.const_data_ptr<std::int64_t>();
  return {first, first + tensor.numel()};
}

// What one batch is: where it belongs, its samples, what they drew.
struct Seen {
  BatchAddress address;
  Indices samples;
  std::vector<double> draws;

  bool operator==(const Seen&) const = default;
  friend void PrintTo(const Seen& seen, std::ostream* out) {
    *out << "step " << seen.address.step << " slot " << seen.address.slot << " micro-batch "
         << seen.address.micro_batch << " " << ::testing::PrintToString(seen.samples);
  }
};

template <typename Batch>
Seen seen(const Delivered<Batch>& delivered) {
  Seen result{.address = delivered.address, .samples = {}, .draws = {}};
  if (!delivered.batch) return result;
  const auto& [samples, draws] = *delivered.batch;
  result.samples = values(samples);
  const auto* first = draws.template const_data_ptr<double>();
  result.draws = {first, first + draws.numel()};
  EXPECT_EQ(result.samples, delivered.indices);
  return result;
}

template <typename L>
std::vector<Seen> rest_of_epoch(L& loader) {
  std::vector<Seen> all;
  while (auto delivered = loader.next()) all.push_back(seen(*delivered));
  return all;
}

}  // namespace

TEST(Loader, delivers_what_python_deals_to_a_rank) {
  const Numbers dataset{23};
  for (const bool drop_last : {false, true}) {
    for (int slot = 0; slot < 3; ++slot) {
      DistributedSampler sampler({.dataset_size = 23,
                                  .world_size = 3,
                                  .rank = slot,
                                  .shuffle = true,
                                  .seed = 5,
                                  .drop_last = drop_last});
      sampler.set_epoch(4);
      Indices expected = sampler.indices();
      if (drop_last) expected.resize(expected.size() / 2 * 2);
      Loader loader(dataset, {.batch_size = 2, .shuffle = true, .drop_last = drop_last, .seed = 5});
      loader.deal({.slots = 3, .mine = {slot}});
      Indices got;
      for (auto& [samples, draws] : loader.epoch(4)) {
        const Indices batch = values(samples);
        got.insert(got.end(), batch.begin(), batch.end());
      }
      EXPECT_EQ(got, expected);
    }
  }
}

TEST(Loader, an_epoch_can_begin_at_any_step_with_any_number_of_workers) {
  const Numbers dataset{29};
  const LoaderOptions plain{.batch_size = 2, .shuffle = true, .seed = 3};
  Loader reference(dataset, plain);
  reference.deal({.slots = 2, .mine = {0, 1}, .accumulate = 3});
  reference.begin_epoch(1);
  const std::vector<Seen> whole = rest_of_epoch(reference);
  ASSERT_EQ(whole.size(), 16u);
  const std::int64_t steps = *reference.steps_per_epoch(1);
  ASSERT_EQ(steps, 3);
  for (const int workers : {0, 1, 3}) {
    LoaderOptions options = plain;
    options.num_workers = workers;
    Loader both(dataset, options);
    both.deal({.slots = 2, .mine = {0, 1}, .accumulate = 3});
    Loader one(dataset, options);
    one.deal({.slots = 2, .mine = {1}, .accumulate = 3});
    for (std::int64_t step = 0; step <= steps; ++step) {
      std::vector<Seen> expected;
      std::ranges::copy_if(whole, std::back_inserter(expected),
                           [&](const Seen& batch) { return batch.address.step >= step; });
      both.begin_epoch(1, step);
      EXPECT_EQ(rest_of_epoch(both), expected) << workers << " workers, from step " << step;
      std::erase_if(expected, [](const Seen& batch) { return batch.address.slot == 0; });
      one.begin_epoch(1, step);
      EXPECT_EQ(rest_of_epoch(one), expected) << workers << " workers, from step " << step;
    }
  }
}

TEST(Loader, another_number_of_processes_gets_the_same_batches) {
  const Numbers dataset{37};
  const LoaderOptions options{.batch_size = 3, .shuffle = true, .seed = 8, .num_workers = 1};
  std::map<std::pair<std::int64_t, int>, Seen> reference;
  for (const std::vector<std::vector<int>>& processes :
       {std::vector<std::vector<int>>{{0}, {1}, {2}, {3}}, {{0, 1}, {2, 3}}, {{3, 0}, {1}, {2}}}) {
    std::map<std::pair<std::int64_t, int>, Seen> got;
    for (const std::vector<int>& mine : processes) {
      Loader loader(dataset, options);
      loader.deal({.slots = 4, .mine = mine});
      loader.begin_epoch(2);
      for (const Seen& batch : rest_of_epoch(loader)) {
        EXPECT_TRUE(got.emplace(std::pair(batch.address.step, batch.address.slot), batch).second);
      }
    }
    if (reference.empty()) reference = got;
    EXPECT_EQ(got, reference);
  }
  EXPECT_EQ(reference.size(), 16u);
}

TEST(Loader, any_batch_can_be_asked_for_at_any_time) {
  const Numbers dataset{26};
  Loader loader(dataset, {.batch_size = 2, .shuffle = true, .num_workers = 2});
  loader.deal({.slots = 2, .mine = {1}, .accumulate = 2});
  loader.begin_epoch(3);
  const std::vector<Seen> whole = rest_of_epoch(loader);
  ASSERT_EQ(whole.size(), 7u);
  loader.begin_epoch(5);
  const Seen first = seen(*loader.next());
  for (auto batch = whole.rbegin(); batch != whole.rend(); ++batch) {
    EXPECT_EQ(seen(loader.at(batch->address)), *batch);
    EXPECT_EQ(loader.indices(batch->address), batch->samples);
  }
  EXPECT_EQ(seen(*loader.next()), seen(loader.at({.epoch = 5, .slot = 1, .micro_batch = 1})));
  EXPECT_EQ(seen(loader.at(first.address)), first);
  EXPECT_THROW(loader.at({.epoch = 3, .step = 4, .slot = 1}), InvalidArgument);
  EXPECT_THROW(loader.at({.epoch = 3, .step = 3, .slot = 1, .micro_batch = 1}), InvalidArgument);
  EXPECT_THROW(loader.at({.epoch = 3, .slot = 2}), InvalidArgument);
}

TEST(Loader, batches_that_were_not_committed_come_again) {
  const Numbers dataset{20};
  for (const int workers : {0, 2}) {
    Loader loader(dataset, {.batch_size = 2, .shuffle = true, .num_workers = workers});
    loader.deal({.slots = 1, .mine = {0}, .accumulate = 2});
    loader.begin_epoch(0);
    const std::vector<Seen> whole = rest_of_epoch(loader);
    loader.begin_epoch(0);
    EXPECT_EQ(loader.state(), (LoaderState{.epoch = 0, .steps = 0}));
    for (int i = 0; i < 5; ++i) loader.next();
    loader.commit(1);
    EXPECT_EQ(loader.state(), (LoaderState{.epoch = 0, .steps = 2}));
    EXPECT_THROW(loader.commit(1), InvalidArgument);
    loader.rewind();
    EXPECT_EQ(rest_of_epoch(loader), std::vector<Seen>(whole.begin() + 4, whole.end()));
    Loader resumed(dataset, {.batch_size = 2, .shuffle = true, .num_workers = 2 - workers});
    resumed.deal(loader.dealt());
    resumed.begin_epoch(loader.state());
    EXPECT_EQ(rest_of_epoch(resumed), std::vector<Seen>(whole.begin() + 4, whole.end()));
  }
}

TEST(Loader, goes_on_from_what_is_committed_when_slots_move_between_processes) {
  const Numbers dataset{24};
  Loader loader(dataset, {.batch_size = 2, .num_workers = 1});
  loader.deal({.slots = 3, .mine = {0}});
  loader.begin_epoch(0);
  loader.next();
  loader.next();
  loader.commit(0);
  loader.deal({.slots = 3, .mine = {0, 2}});
  EXPECT_THROW(loader.next(), InvalidArgument);
  loader.rewind();
  const auto first = loader.next();
  const auto second = loader.next();
  EXPECT_EQ(first->address, (BatchAddress{.step = 1, .slot = 0}));
  EXPECT_FALSE(first->last_in_step);
  EXPECT_EQ(second->address, (BatchAddress{.step = 1, .slot = 2}));
  EXPECT_TRUE(second->last_in_step);
  EXPECT_EQ(second->indices, (Indices{8, 11}));
}

TEST(Loader, evaluation_sees_every_sample_once_and_slots_stay_in_step) {
  const Numbers dataset{13};
  Indices all;
  for (int slot = 0; slot < 3; ++slot) {
    Loader loader(dataset, {.batch_size = 2, .dealing = Dealing::kExact, .num_workers = 2});
    loader.deal({.slots = 3, .mine = {slot}});
    loader.begin_epoch(0);
    int batches = 0;
    while (const auto delivered = loader.next()) {
      ++batches;
      EXPECT_EQ(delivered->batch.has_value(), delivered->samples() > 0);
      all.insert(all.end(), delivered->indices.begin(), delivered->indices.end());
    }
    EXPECT_EQ(batches, *loader.steps_per_epoch());
    EXPECT_EQ(*loader.samples_per_epoch(), 13);
    std::size_t filled = 0;
    for (auto& [samples, draws] : loader.epoch(0)) filled += samples.numel();
    EXPECT_EQ(filled, slot == 0 ? 5u : 4u);
  }
  std::ranges::sort(all);
  Indices expected(13);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
}

TEST(Loader, what_a_sample_draws_changes_with_the_epoch_and_the_seed) {
  const Numbers dataset{4};
  const auto draws = [&](std::uint64_t seed, std::int64_t epoch) {
    Loader loader(dataset, {.batch_size = 4, .seed = seed});
    loader.begin_epoch(epoch);
    return seen(*loader.next()).draws;
  };
  EXPECT_EQ(draws(0, 0), draws(0, 0));
  EXPECT_NE(draws(0, 0), draws(0, 1));
  EXPECT_NE(draws(0, 0), draws(1, 0));
  const std::vector<double> some = draws(0, 0);
  EXPECT_EQ(std::set<double>(some.begin(), some.end()).size(), 4u);
}

TEST(Loader, an_empty_dataset_has_no_batches) {
  const Numbers dataset{0};
  for (const int workers : {0, 2}) {
    Loader loader(dataset, {.batch_size = 4, .shuffle = true, .num_workers = workers});
    loader.deal({.slots = 2, .mine = {1}});
    loader.begin_epoch(0);
    EXPECT_FALSE(loader.next().has_value());
    EXPECT_EQ(loader.steps_per_epoch(), 0);
  }
}

TEST(Loader, takes_the_order_of_a_sampler) {
  const Numbers dataset{10};
  Loader loader(dataset,
                {.batch_size = 2,
                 .sampler = std::make_shared<lockstep::SubsetSampler>(Indices{9, 3, 5, 1, 7})});
  loader.deal({.slots = 2, .mine = {1}});
  loader.begin_epoch(0);
  EXPECT_EQ(loader.next()->indices, (Indices{3, 1}));
  EXPECT_EQ(loader.next()->indices, (Indices{9}));
  EXPECT_FALSE(loader.next().has_value());
}

TEST(Loader, takes_whole_batches_of_a_batch_sampler) {
  const Numbers dataset{10};
  Loader loader(dataset, {.num_workers = 2, .batch_sampler = [](std::int64_t epoch) {
                            return std::vector<Indices>{{epoch, 1, 2}, {3}, {4, 5}};
                          }});
  EXPECT_EQ(loader.steps_per_epoch(), 3);
  loader.deal({.slots = 2, .mine = {0}});
  EXPECT_EQ(loader.steps_per_epoch(), 2);
  loader.begin_epoch(7);
  EXPECT_EQ(seen(*loader.next()).samples, (Indices{7, 1, 2}));
  EXPECT_EQ(seen(*loader.next()).samples, (Indices{4, 5}));
  EXPECT_FALSE(loader.next().has_value());
}

namespace {

// Sample `bad` throws.
struct Faulty {
  std::int64_t bad = 0;

  std::int64_t size() const { return 20; }
  std::int64_t get(std::int64_t index) const {
    if (index == bad) throw std::runtime_error("file image_5.png is cut short");
    return index;
  }
};

}  // namespace

TEST(Loader, an_error_of_a_dataset_comes_in_its_place_with_its_text_and_the_sample) {
  const Faulty dataset{5};
  for (const int workers : {0, 1, 3}) {
    Loader loader(dataset, {.batch_size = 2, .num_workers = workers});
    loader.begin_epoch(0);
    EXPECT_EQ(values(*loader.next()->batch), (Indices{0, 1}));
    EXPECT_EQ(values(*loader.next()->batch), (Indices{2, 3}));
    try {
      loader.next();
      ADD_FAILURE() << "no error";
    } catch (const SampleError& error) {
      EXPECT_STREQ(error.what(), "sample 5: file image_5.png is cut short");
      EXPECT_EQ(error.index(), 5);
      EXPECT_THROW(std::rethrow_exception(error.cause()), std::runtime_error);
    }
    EXPECT_EQ(values(*loader.next()->batch), (Indices{6, 7}));
  }
}

TEST(Loader, a_sampler_that_names_a_sample_that_is_not_there_is_refused) {
  const Numbers dataset{10};
  Loader loader(dataset, {.num_workers = 1,
                          .sampler = std::make_shared<lockstep::SubsetSampler>(Indices{3, 10})});
  loader.begin_epoch(0);
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_THROW(loader.next(), InvalidArgument);
}

TEST(Loader, can_be_left_and_destroyed_in_mid_epoch) {
  const Numbers dataset{1000};
  for (int round = 0; round < 20; ++round) {
    Loader loader(dataset, {.batch_size = 2, .num_workers = 3});
    int taken = 0;
    for ([[maybe_unused]] const auto& batch : loader.epoch(round)) {
      if (++taken > round) break;
    }
    if (round % 2 == 0) continue;
    EXPECT_EQ(loader.epoch(round + 1).begin()->first.numel(), 2);
  }
}

namespace {

// Waits until it is let go.
struct Gate {
  mutable std::atomic<bool> open = false;

  std::int64_t size() const { return 4; }
  std::int64_t get(std::int64_t index) const {
    while (!open) std::this_thread::yield();
    return index;
  }
};

}  // namespace

TEST(Loader, a_batch_that_is_late_is_named_and_can_still_be_waited_for) {
  const Gate dataset;
  Loader loader(dataset, {.num_workers = 1, .timeout = std::chrono::milliseconds(20)});
  loader.begin_epoch(3);
  try {
    loader.next();
    ADD_FAILURE() << "no time-out";
  } catch (const Timeout& error) {
    EXPECT_STREQ(error.what(),
                 "Loader: the batch of epoch 3, step 0, slot 0, micro-batch 0 (its first sample is "
                 "0) was not there within 20 ms");
  }
  dataset.open = true;
  std::optional<Delivered<at::Tensor>> delivered;
  while (!delivered) {
    try {
      delivered = loader.next();
    } catch (const Timeout&) {
    }
  }
  EXPECT_EQ(delivered->indices, (Indices{0}));
}

namespace {

// Sample i is how many threads ATen would use for it.
struct Threads {
  std::int64_t size() const { return 8; }
  std::int64_t get(std::int64_t) const { return at::get_num_threads(); }
};

}  // namespace

TEST(Loader, workers_run_operators_on_one_thread_and_leave_the_callers_alone) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  Loader loader(Threads{}, {.batch_size = 8, .num_workers = 2});
  loader.begin_epoch(0);
  EXPECT_EQ(values(*loader.next()->batch), Indices(8, 1));
  EXPECT_EQ(at::get_num_threads(), 3);
  int in_a_new_thread = 0;
  std::thread([&] { in_a_new_thread = at::get_num_threads(); }).join();
  EXPECT_EQ(in_a_new_thread, 3);
  at::set_num_threads(before);
}

TEST(Loader, worker_init_runs_once_in_every_worker) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::set<int> ids;
  const Numbers dataset{100};
  {
    Loader loader(dataset, {.num_workers = 3, .worker_init = [&](const lockstep::WorkerInfo& info) {
                              const std::lock_guard lock(mutex);
                              threads.insert(std::this_thread::get_id());
                              ids.insert(info.id);
                              EXPECT_EQ(info.num_workers, 3);
                            }});
    for (int epoch = 0; epoch < 3; ++epoch) {
      loader.begin_epoch(epoch);
      EXPECT_EQ(rest_of_epoch(loader).size(), 100u);
    }
  }
  EXPECT_EQ(threads.size(), 3u);
  EXPECT_EQ(ids, (std::set<int>{0, 1, 2}));
}

TEST(Loader, options_that_contradict_each_other_are_refused) {
  const Numbers dataset{4};
  const auto refused = [&](LoaderOptions options) {
    EXPECT_THROW(Loader(dataset, std::move(options)), InvalidArgument);
  };
  const auto sampler = std::make_shared<lockstep::SequentialSampler>(4);
  refused({.batch_size = 0});
  refused({.num_workers = -1});
  refused({.num_workers = 1, .prefetch_factor = 0});
  refused({.timeout = std::chrono::seconds(1)});
  refused({.num_workers = 1, .timeout = std::chrono::seconds(-1)});
  refused({.worker_init = [](const lockstep::WorkerInfo&) {}});
  refused({.shuffle = true, .sampler = sampler});
  refused({.batch_size = 2, .batch_sampler = [](std::int64_t) { return std::vector<Indices>{}; }});
  refused({.drop_last = true, .dealing = Dealing::kExact});
  Loader loader(dataset);
  EXPECT_THROW(loader.next(), InvalidArgument);
  EXPECT_THROW(loader.commit(0), InvalidArgument);
  EXPECT_THROW(loader.begin_epoch(-1), InvalidArgument);
  EXPECT_THROW(loader.begin_epoch(0, 5), InvalidArgument);
  EXPECT_THROW(loader.deal({.slots = 2, .mine = {2}}), InvalidArgument);
  EXPECT_THROW(loader.deal({.slots = 2, .mine = {1, 1}}), InvalidArgument);
  EXPECT_THROW(loader.deal({.slots = 2, .mine = {}}), InvalidArgument);
  EXPECT_THROW(loader.deal({.slots = 0}), InvalidArgument);
  EXPECT_THROW(loader.deal({.accumulate = 0}), InvalidArgument);
}
