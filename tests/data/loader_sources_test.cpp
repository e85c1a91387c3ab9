// Streams, datasets that come with the library, and collation.
#include <array>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "lockstep/loader.h"

using lockstep::BatchAddress;
using lockstep::InvalidArgument;
using lockstep::Loader;
using lockstep::LoaderOptions;
using lockstep::PushSource;
using lockstep::Random;
using lockstep::SampleError;
using lockstep::StreamPosition;
using lockstep::TensorDataset;

namespace {

using Indices = std::vector<std::int64_t>;

Indices values_of(const at::Tensor& tensor) {
  const auto* first = tensor.const_data_ptr<std::int64_t>();
  return {first, first + tensor.numel()};
}

// Counts from 0 to its end.
struct Counter {
  std::int64_t end = 0;
  std::int64_t now = 0;

  std::optional<std::int64_t> next() {
    if (now == end) return std::nullopt;
    return now++;
  }
};

// Ten thousand times the slot plus the place, and a hundred thousand times the epoch.
struct SlotStream {
  std::int64_t length = 0;
  StreamPosition at = {};
  int seeks = 0;

  void seek(const StreamPosition& position) {
    at = position;
    ++seeks;
  }
  std::optional<std::int64_t> next() {
    if (at.sample == length) return std::nullopt;
    return at.epoch * 100'000 + at.slot * 10'000 + at.sample++;
  }
};

template <typename Sample>
auto collated(std::vector<Sample> samples, Indices indices) {
  return lockstep::DefaultCollate{}(samples, indices);
}

struct Pair {
  at::Tensor input;
  at::Tensor target;
};

struct Labelled {
  at::Tensor image;
  int label = 0;
  std::string file;
};

}  // namespace

TEST(LoaderOfStream, reads_on_and_on_whatever_the_epoch) {
  for (const int workers : {0, 1, 4}) {
    Counter counter{11};
    Loader loader(counter, {.batch_size = 2, .num_workers = workers});
    EXPECT_FALSE(loader.replayable());
    EXPECT_EQ(loader.steps_per_epoch(), std::nullopt);
    loader.begin_epoch(0);
    EXPECT_EQ(values_of(*loader.next()->batch), (Indices{0, 1}));
    loader.commit(0);
    EXPECT_THROW(loader.rewind(), InvalidArgument);
    EXPECT_THROW(loader.begin_epoch(1, 1), InvalidArgument);
    // Nothing that was read ahead is lost.
    loader.begin_epoch(1);
    const auto delivered = loader.next();
    EXPECT_EQ(delivered->address, (BatchAddress{.epoch = 1, .step = 0}));
    EXPECT_EQ(values_of(*delivered->batch), (Indices{2, 3}));
    Indices rest;
    for (at::Tensor& batch : loader.epoch(2)) {
      const Indices some = values_of(batch);
      rest.insert(rest.end(), some.begin(), some.end());
    }
    EXPECT_EQ(rest, (Indices{4, 5, 6, 7, 8, 9, 10}));
    loader.begin_epoch(3);
    EXPECT_FALSE(loader.next().has_value());
  }
}

TEST(LoaderOfStream, drop_last_leaves_out_a_short_batch) {
  Loader loader(Counter{5}, {.batch_size = 2, .drop_last = true, .num_workers = 1});
  loader.begin_epoch(0);
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_FALSE(loader.next().has_value());
}

TEST(LoaderOfStream, one_that_seeks_gives_each_slot_its_samples_from_any_step) {
  for (const int workers : {0, 2}) {
    SlotStream stream{.length = 12};
    Loader loader(stream, {.batch_size = 2, .num_workers = workers});
    EXPECT_TRUE(loader.replayable());
    loader.deal({.slots = 4, .mine = {3, 1}, .accumulate = 2});
    loader.begin_epoch(2, 1);
    const auto first = loader.next();
    EXPECT_EQ(first->address, (BatchAddress{.epoch = 2, .step = 1, .slot = 3}));
    EXPECT_EQ(values_of(*first->batch), (Indices{230'004, 230'005}));
    EXPECT_EQ(values_of(*loader.next()->batch), (Indices{230'006, 230'007}));
    EXPECT_EQ(values_of(*loader.next()->batch), (Indices{210'004, 210'005}));
    loader.rewind();
    EXPECT_EQ(values_of(*loader.next()->batch), (Indices{230'004, 230'005}));
  }
}

TEST(LoaderOfStream, one_that_seeks_is_not_told_to_when_it_is_there_already) {
  SlotStream stream{.length = 100};
  Loader loader(stream, {.batch_size = 2});
  loader.begin_epoch(0);
  while (loader.next()) {
  }
  EXPECT_EQ(stream.seeks, 1);
}

TEST(LoaderOfStream, an_error_names_the_sample) {
  struct Broken {
    int now = 0;
    std::optional<std::int64_t> next() {
      if (now == 3) throw std::runtime_error("connection lost");
      return now++;
    }
  };
  Loader loader(Broken{}, {.batch_size = 2, .num_workers = 1});
  loader.begin_epoch(0);
  EXPECT_TRUE(loader.next().has_value());
  try {
    loader.next();
    ADD_FAILURE() << "no error";
  } catch (const SampleError& error) {
    EXPECT_STREQ(error.what(), "sample 3: connection lost");
  }
}

TEST(LoaderOfStream, has_no_order_to_choose) {
  EXPECT_THROW(Loader(Counter{5}, {.shuffle = true}), InvalidArgument);
  Loader loader(Counter{5});
  loader.begin_epoch(0);
  EXPECT_THROW(loader.at({}), InvalidArgument);
}

TEST(LoaderOfStream, a_simulation_pushes_while_training_reads) {
  PushSource<std::pair<at::Tensor, float>> source(8);
  Loader loader(source, {.batch_size = 4, .num_workers = 1});
  EXPECT_FALSE(loader.replayable());
  std::thread simulation([&] {
    for (int i = 0; i < 102; ++i) source.push({at::full({3}, i), i / 2.0f});
    source.close();
  });
  int samples = 0;
  for (auto& [states, rewards] : loader.epoch(0)) {
    for (std::int64_t i = 0; i < states.size(0); ++i, ++samples) {
      EXPECT_EQ(states[i][2].item<std::int64_t>(), samples);
      EXPECT_EQ(rewards[i].item<float>(), samples / 2.0f);
    }
  }
  simulation.join();
  EXPECT_EQ(samples, 102);
}

TEST(LoaderOfStream, can_be_destroyed_while_it_waits_for_a_push) {
  const auto source = std::make_shared<PushSource<int>>(8);
  {
    Loader loader(source, {.batch_size = 2, .num_workers = 1});
    loader.begin_epoch(0);
    source->push(1);
    source->push(2);
    EXPECT_TRUE(loader.next().has_value());
  }
  EXPECT_TRUE(source->push(3));
}

TEST(TensorDataset, batches_are_rows_of_its_tensors) {
  const at::Tensor inputs = at::rand({11, 3, 2});
  const at::Tensor targets = at::arange(11);
  const TensorDataset dataset(inputs, targets);
  EXPECT_EQ(dataset.size(), 11);
  EXPECT_TRUE(at::equal(std::get<0>(dataset.get(4)), inputs[4]));
  EXPECT_THROW(dataset.get(11), InvalidArgument);
  for (const int workers : {0, 2}) {
    Loader loader(dataset, {.batch_size = 4, .shuffle = true, .num_workers = workers});
    loader.begin_epoch(1);
    int batches = 0;
    while (const auto delivered = loader.next()) {
      const auto& [x, y] = *delivered->batch;
      EXPECT_EQ(values_of(y), delivered->indices);
      for (std::int64_t i = 0; i < x.size(0); ++i) {
        EXPECT_TRUE(at::equal(x[i], inputs[delivered->indices[i]]));
      }
      ++batches;
    }
    EXPECT_EQ(batches, 3);
  }
  EXPECT_THROW(TensorDataset(inputs, at::arange(10)), InvalidArgument);
  EXPECT_THROW(TensorDataset(at::full({}, 3)), InvalidArgument);
}

TEST(TensorDataset, one_tensor_gives_tensors) {
  const TensorDataset dataset(at::arange(6));
  Loader loader(dataset, {.batch_size = 6});
  for (at::Tensor& batch : loader.epoch(0))
    EXPECT_EQ(values_of(batch), (Indices{0, 1, 2, 3, 4, 5}));
}

TEST(Datasets, can_be_cut_joined_and_mapped) {
  const TensorDataset ten(at::arange(10));
  const lockstep::Subset some(ten, {9, 1, 5});
  const lockstep::Concat joined(some, lockstep::Subset(ten, {0, 2}));
  EXPECT_EQ(joined.size(), 5);
  Loader loader(lockstep::Mapped(joined, [](const at::Tensor& t) { return t.mul(10); }),
                {.batch_size = 5, .num_workers = 1});
  loader.begin_epoch(0);
  EXPECT_EQ(values_of(*loader.next()->batch), (Indices{90, 10, 50, 0, 20}));
  Loader whole(some, {.batch_size = 3});
  whole.begin_epoch(0);
  EXPECT_EQ(values_of(*whole.next()->batch), (Indices{9, 1, 5}));
  EXPECT_THROW(lockstep::Subset(ten, {10}), InvalidArgument);
}

TEST(Datasets, transforms_draw_the_same_on_any_worker) {
  const TensorDataset ten(at::arange(10));
  const lockstep::Mapped noisy(ten, [](const at::Tensor& t, Random& random) {
    return at::rand({}, random.generator()).add(t).add(random.uniform());
  });
  std::vector<at::Tensor> reference;
  for (const int workers : {0, 1, 3}) {
    Loader loader(noisy, {.batch_size = 3, .shuffle = true, .num_workers = workers});
    std::vector<at::Tensor> batches;
    for (at::Tensor& batch : loader.epoch(4)) batches.push_back(batch);
    if (workers == 0) reference = batches;
    ASSERT_EQ(batches.size(), 4u);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(batches[i], reference[i]));
  }
}

TEST(Datasets, can_draw_with_atens_generator) {
  struct Noise {
    std::int64_t size() const { return 4; }
    at::Tensor get(std::int64_t, at::Generator& generator) const {
      return at::rand({2}, generator);
    }
  };
  Loader first(Noise{}, {.batch_size = 4});
  Loader second(Noise{}, {.batch_size = 1, .num_workers = 2});
  first.begin_epoch(0);
  second.begin_epoch(0);
  const auto together = first.next();
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(at::equal((*together->batch)[i], (*second.next()->batch)[0]));
  }
  EXPECT_FALSE(at::equal((*together->batch)[0], (*together->batch)[1]));
}

TEST(Collate, stacks_tensors_and_numbers) {
  const at::Tensor a = at::rand({2, 3});
  const at::Tensor b = at::rand({3, 2}).t();  // not contiguous
  EXPECT_TRUE(at::equal(collated<at::Tensor>({a, b}, {0, 1}), at::stack({a, b})));
  EXPECT_TRUE(at::equal(collated<at::Tensor>({a, a}, {0, 1}), at::stack({a, a})));
  EXPECT_EQ(collated<float>({1.5f, 2}, {0, 1}).scalar_type(), at::kFloat);
  EXPECT_EQ(collated<double>({1.5, 2}, {0, 1}).scalar_type(), at::kDouble);
  EXPECT_EQ(collated<int>({1, 2}, {0, 1}).scalar_type(), at::kInt);
  EXPECT_EQ(collated<std::uint8_t>({1, 255}, {0, 1}).scalar_type(), at::kByte);
  EXPECT_EQ(values_of(collated<std::uint32_t>({1, 4'000'000'000}, {0, 1})),
            (Indices{1, 4'000'000'000}));
  EXPECT_EQ((collated<std::pair<bool, int>>({{true, 1}, {false, 2}}, {0, 1})).first.scalar_type(),
            at::kBool);
}

TEST(Collate, goes_through_members) {
  const at::Tensor t = at::rand({2});
  const auto [first, second, names] = collated<std::tuple<at::Tensor, float, std::string>>(
      {{t, 1.0f, "a"}, {t, 2.0f, "b"}}, {0, 1});
  EXPECT_EQ(first.sizes(), at::IntArrayRef({2, 2}));
  EXPECT_EQ(second.numel(), 2);
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b"}));

  const Pair pair = collated<Pair>({{t, t}, {t, t}}, {0, 1});
  EXPECT_EQ(pair.target.sizes(), at::IntArrayRef({2, 2}));
  const auto [images, labels, files] =
      collated<Labelled>({{t, 3, "x.png"}, {t, 4, "y.png"}}, {0, 1});
  EXPECT_EQ(images.sizes(), at::IntArrayRef({2, 2}));
  EXPECT_EQ(labels.scalar_type(), at::kInt);
  EXPECT_EQ(files[1], "y.png");

  const auto map = collated<std::map<std::string, at::Tensor>>({{{"x", t}}, {{"x", t}}}, {0, 1});
  EXPECT_EQ(map.at("x").sizes(), at::IntArrayRef({2, 2}));
  EXPECT_EQ(values_of(collated<std::vector<std::int64_t>>({{1, 2, 3}, {4, 5, 6}}, {0, 1})),
            (Indices{1, 2, 3, 4, 5, 6}));
  const auto places = collated<std::array<at::Tensor, 2>>({{t, t}, {t, t}, {t, t}}, {0, 1, 2});
  EXPECT_EQ(places.size(), 2u);
  EXPECT_EQ(places[1].sizes(), at::IntArrayRef({3, 2}));
}

namespace {

// What `collate` says of samples that do not fit.
template <typename Sample>
std::string complaint(std::vector<Sample> samples, Indices indices) {
  try {
    collated<Sample>(std::move(samples), std::move(indices));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST(Collate, names_the_sample_that_does_not_fit) {
  EXPECT_EQ(
      complaint<at::Tensor>({at::rand({2}), at::rand({3})}, {17, 4}),
      "sample 4 is float[3] on cpu, sample 17 in the same batch float[2] on cpu; samples of a "
      "batch must be alike (give the loader a collate function that pads)");
  EXPECT_EQ(complaint<at::Tensor>({at::rand({2}), at::Tensor()}, {17, 4}),
            "sample 4 holds an undefined tensor");
  EXPECT_EQ(complaint<std::vector<int>>({{1, 2}, {1}}, {5, 6}),
            "sample 6 has 1 elements, sample 5 in the same batch 2; samples of a batch must be "
            "alike");
  using Map = std::map<std::string, int>;
  EXPECT_EQ(complaint<Map>({{{"x", 1}}, {{"y", 1}}}, {5, 6}),
            "sample 6 has no key \"x\", which sample 5 in the same batch has");
}

TEST(Collate, a_function_of_the_users_makes_the_batch) {
  struct Sentences {
    std::int64_t size() const { return 5; }
    Indices get(std::int64_t index) const { return Indices(index + 1, index); }
  };
  // Pads to the longest.
  const auto pad = [](std::vector<Indices>& samples) {
    std::size_t longest = 0;
    for (const Indices& sample : samples) longest = std::max(longest, sample.size());
    at::Tensor batch =
        at::full({std::ssize(samples), static_cast<std::int64_t>(longest)}, -1, at::kLong);
    for (std::int64_t row = 0; row < std::ssize(samples); ++row) {
      for (std::int64_t i = 0; i < std::ssize(samples[row]); ++i) batch[row][i] = samples[row][i];
    }
    return batch;
  };
  Loader loader(Sentences{}, {.batch_size = 2, .num_workers = 2}, pad);
  loader.begin_epoch(0);
  EXPECT_EQ(values_of(*loader.next()->batch), (Indices{0, -1, 1, 1}));
  Loader plain(Sentences{}, {.batch_size = 2, .num_workers = 2});
  plain.begin_epoch(0);
  EXPECT_THROW(plain.next(), InvalidArgument);
}
