#include "shm/team.h"

#include <algorithm>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "shm/reduce.h"
#include "tests/shm/team_of_threads.h"

using namespace lockstep;
using lockstep::testing::TeamOfThreads;

namespace {

using Data = std::vector<std::byte>;

// The elements that a rank contributes; small numbers, so that products stay finite.
Data contribution(ElementType type, std::int64_t count, int rank) {
  std::mt19937 random(static_cast<unsigned>(1000 * rank + static_cast<int>(count)));
  Data data(static_cast<std::size_t>(count) * bytes_of(type));
  for (std::int64_t i = 0; i < count; ++i) {
    std::byte* at = data.data() + static_cast<std::size_t>(i) * bytes_of(type);
    const auto put = [&](auto value) { std::memcpy(at, &value, sizeof(value)); };
    const auto number = static_cast<unsigned>(random());
    if (type == ElementType::float32) {
      put(static_cast<float>(number) * 0x1p-31F - 1);
    } else if (type == ElementType::float64) {
      put(static_cast<double>(number) * 0x1p-31 - 1);
    } else if (type == ElementType::boolean) {
      put(static_cast<std::uint8_t>(number & 1));
    } else {
      // Any bits are a number of the other types; of the narrow floats, keep them finite.
      for (std::size_t k = 0; k < bytes_of(type); ++k) {
        at[k] = static_cast<std::byte>((number >> (8 * (k % 4))) & 0x3f);
      }
    }
  }
  return data;
}

std::vector<Data> contributions(ElementType type, std::int64_t count, int ranks) {
  std::vector<Data> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(contribution(type, count, rank));
  return all;
}

// The reduction of all ranks' contributions; reduce_test.cpp says that the loops are right.
Data expected(const ReduceSpec& spec, const std::vector<Data>& parts) {
  Data result(parts[0].size());
  // Cut in a way of its own, which has no influence.
  const std::size_t piece = 61 * bytes_of(spec.type);
  for (std::size_t begin = 0; begin < result.size(); begin += piece) {
    std::vector<const void*> at;
    for (const Data& part : parts) at.push_back(part.data() + begin);
    const std::size_t bytes = std::min(piece, result.size() - begin);
    reduce_elements(spec, at, static_cast<std::int64_t>(bytes / bytes_of(spec.type)),
                    result.data() + begin);
  }
  return result;
}

std::vector<ElementType> all_types() {
  std::vector<ElementType> types;
  for (int type = 0; type <= static_cast<int>(ElementType::float64); ++type) {
    types.push_back(static_cast<ElementType>(type));
  }
  return types;
}

std::vector<ReduceOperator> operators_for(ElementType type) {
  std::vector<ReduceOperator> all{ReduceOperator::sum, ReduceOperator::product, ReduceOperator::min,
                                  ReduceOperator::max};
  if (!is_floating(type)) {
    for (const auto op :
         {ReduceOperator::bit_and, ReduceOperator::bit_or, ReduceOperator::bit_xor}) {
      all.push_back(op);
    }
  }
  return all;
}

void expect_no_errors(const std::vector<std::string>& errors) {
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

Data filled(std::size_t bytes, int value) {
  return Data(bytes, static_cast<std::byte>(value));
}

class TeamTest : public ::testing::TestWithParam<int> {};

}  // namespace

TEST_P(TeamTest, reduces_every_type_by_every_operator) {
  const int ranks = GetParam();
  TeamOfThreads team(ranks);
  for (const ElementType type : all_types()) {
    // Zero, one, an odd number; more than is exchanged whole.
    for (const std::int64_t count : {0, 1, 1003, 18'001}) {
      const std::vector<Data> parts = contributions(type, count, ranks);
      for (const ReduceOperator op : operators_for(type)) {
        if (count == 18'001 && op != ReduceOperator::sum) continue;
        const ReduceSpec spec{.type = type, .op = op};
        const Data result = expected(spec, parts);
        expect_no_errors(team.run([&](ShmTeam& rank) {
          const Data& mine = parts[static_cast<std::size_t>(rank.rank())];
          Data data = mine;
          rank.all_reduce(data.data(), count, spec);
          EXPECT_TRUE(data == result) << name_of(type) << " " << name_of(op) << " x " << count;
          data = mine;
          const int root = ranks - 1;
          rank.reduce(data.data(), count, spec, root);
          EXPECT_TRUE(data == (rank.rank() == root ? result : mine))
              << name_of(type) << " " << name_of(op) << " x " << count;
        }));
      }
    }
  }
}

TEST_P(TeamTest, reduces_what_does_not_fit_into_a_chunk) {
  const int ranks = GetParam();
  TeamOfThreads team(ranks);
  for (const std::int64_t count : {65'535, 65'537, 200'001}) {
    const ReduceSpec spec{.type = ElementType::float32, .divisor = double(ranks)};
    const std::vector<Data> parts = contributions(spec.type, count, ranks);
    const Data result = expected(spec, parts);
    expect_no_errors(team.run([&](ShmTeam& rank) {
      Data data = parts[static_cast<std::size_t>(rank.rank())];
      rank.all_reduce(data.data(), count, spec);
      EXPECT_TRUE(data == result) << count;
    }));
  }
}

TEST_P(TeamTest, scatters_reductions) {
  const int ranks = GetParam();
  TeamOfThreads team(ranks);
  for (const std::int64_t count : {0, 1, 777, 40'003}) {
    const ReduceSpec spec{.type = ElementType::bfloat16};
    const std::int64_t all = count * ranks;
    const std::vector<Data> parts = contributions(spec.type, all, ranks);
    const Data result = expected(spec, parts);
    expect_no_errors(team.run([&](ShmTeam& rank) {
      const std::size_t bytes = static_cast<std::size_t>(count) * 2;
      Data data = parts[static_cast<std::size_t>(rank.rank())];
      std::vector<const void*> inputs;
      for (int peer = 0; peer < ranks; ++peer) {
        inputs.push_back(data.data() + static_cast<std::size_t>(peer) * bytes);
      }
      // In place: the result replaces this rank's own part.
      std::byte* own = data.data() + static_cast<std::size_t>(rank.rank()) * bytes;
      rank.reduce_scatter(inputs, own, count, spec);
      EXPECT_EQ(Data(own, own + bytes),
                Data(result.begin() + rank.rank() * static_cast<std::ptrdiff_t>(bytes),
                     result.begin() + (rank.rank() + 1) * static_cast<std::ptrdiff_t>(bytes)));
    }));
  }
}

TEST_P(TeamTest, moves_data_as_the_names_say) {
  const int ranks = GetParam();
  TeamOfThreads team(ranks);
  for (const std::size_t bytes : {0, 1, 1001, 131'072, 300'001}) {
    for (int root = 0; root < ranks; root += 2) {
      expect_no_errors(team.run([&](ShmTeam& rank) {
        const int me = rank.rank();
        Data data = filled(bytes, me + 1);
        rank.broadcast({data.data(), bytes}, root);
        EXPECT_TRUE(data == filled(bytes, root + 1));

        std::vector<Data> outputs(static_cast<std::size_t>(ranks), Data(bytes));
        std::vector<void*> pointers;
        for (Data& output : outputs) pointers.push_back(output.data());
        data = filled(bytes, me + 1);
        rank.all_gather({data.data(), bytes}, pointers);
        for (int peer = 0; peer < ranks; ++peer) {
          EXPECT_EQ(outputs[static_cast<std::size_t>(peer)], filled(bytes, peer + 1));
        }

        for (Data& output : outputs) std::ranges::fill(output, std::byte{0});
        data = filled(bytes, 10 * (me + 1));
        rank.gather({data.data(), bytes}, me == root ? pointers : std::vector<void*>{}, root);
        for (int peer = 0; peer < ranks; ++peer) {
          EXPECT_EQ(outputs[static_cast<std::size_t>(peer)],
                    filled(bytes, me == root ? 10 * (peer + 1) : 0));
        }

        for (int peer = 0; peer < ranks; ++peer) {
          std::ranges::fill(outputs[static_cast<std::size_t>(peer)],
                            static_cast<std::byte>(20 + peer));
        }
        rank.scatter(me == root ? std::vector<const void*>(pointers.begin(), pointers.end())
                                : std::vector<const void*>{},
                     {data.data(), bytes}, root);
        EXPECT_TRUE(data == filled(bytes, 20 + me));
        rank.barrier();
      }));
    }
  }
}

TEST_P(TeamTest, exchanges_parts_of_any_size) {
  const int ranks = GetParam();
  TeamOfThreads team(ranks);
  // From rank a to rank b.
  const auto length = [](int a, int b) { return static_cast<std::size_t>(a * 70'001 + b * 17); };
  expect_no_errors(team.run([&](ShmTeam& rank) {
    for (int round = 0; round < 3; ++round) {
      const int me = rank.rank();
      std::vector<Data> sent, received;
      std::vector<ShmTeam::ConstBytes> inputs;
      std::vector<ShmTeam::Bytes> outputs;
      for (int peer = 0; peer < ranks; ++peer) {
        sent.push_back(filled(length(me, peer), 16 * me + peer + round));
        received.push_back(filled(length(peer, me), 255));
      }
      for (auto& each : sent) inputs.push_back({each.data(), each.size()});
      for (auto& each : received) outputs.push_back({each.data(), each.size()});
      rank.all_to_all(inputs, outputs);
      for (int peer = 0; peer < ranks; ++peer) {
        EXPECT_EQ(received[static_cast<std::size_t>(peer)],
                  filled(length(peer, me), 16 * peer + me + round));
      }
    }
  }));
}

// Ranks that are ahead must not overwrite what others still read.
TEST_P(TeamTest, keeps_calls_apart_that_follow_each_other_quickly) {
  const int ranks = GetParam();
  TeamOfThreads team(ranks);
  expect_no_errors(team.run([&](ShmTeam& rank) {
    std::mt19937 pause(static_cast<unsigned>(rank.rank()));
    for (int round = 0; round < 400; ++round) {
      const int root = round % ranks;
      std::int64_t value = rank.rank() == root ? round : -1;
      rank.broadcast({&value, sizeof(value)}, root);
      ASSERT_EQ(value, round);
      value = round + rank.rank();
      rank.all_reduce(&value, 1, {.type = ElementType::int64});
      ASSERT_EQ(value, ranks * round + ranks * (ranks - 1) / 2);
      if (pause() % 8 == 0) std::this_thread::yield();
      if (round % 50 == 0) {
        std::vector<std::int64_t> large(20'000, round);
        rank.all_reduce(large.data(), 20'000, {.type = ElementType::int64});
        ASSERT_EQ(large[19'999], std::int64_t{ranks} * round);
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, TeamTest, ::testing::Values(1, 2, 3, 4, 5));
