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
