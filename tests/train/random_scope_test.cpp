#include "lockstep/random_scope.h"

#include <set>

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <c10/core/Device.h>

using lockstep::RandomPlace;
using lockstep::RandomScope;
using lockstep::seed_of;

namespace {

const c10::Device kCpu(c10::kCPU);

at::Tensor drawn_at(const RandomPlace& place) {
  const RandomScope scope(place, kCpu);
  return at::rand({16});
}

}  // namespace

TEST(RandomScope, a_place_always_gives_the_same_numbers) {
  const RandomPlace place{.seed = 3, .step = 12, .slot = 1, .micro_batch = 2};
  const at::Tensor first = drawn_at(place);
  drawn_at({.seed = 3, .step = 13});
  at::rand({100});
  EXPECT_TRUE(at::equal(first, drawn_at(place)));
}

TEST(RandomScope, every_part_of_a_place_matters) {
  const RandomPlace places[] = {{},          {.seed = 1},        {.step = 1},
                                {.slot = 1}, {.micro_batch = 1}, {.purpose = 1}};
  std::set<std::uint64_t> seeds;
  for (const auto& place : places) seeds.insert(seed_of(place));
  EXPECT_EQ(seeds.size(), std::size(places));
}

TEST(RandomScope, what_is_drawn_outside_does_not_notice) {
  at::rand({3});
  at::randn({1});  // leaves half of a pair of normal numbers behind
  const RandomPlace place{.step = 5};
  at::Tensor undisturbed, disturbed;
  {
    const RandomScope start({.seed = 99}, kCpu);
    at::randn({1});
    undisturbed = at::randn({5});
  }
  {
    const RandomScope start({.seed = 99}, kCpu);
    at::randn({1});
    drawn_at(place);
    disturbed = at::randn({5});
  }
  EXPECT_TRUE(at::equal(undisturbed, disturbed));
}

TEST(RandomScope, the_generators_are_restored_when_an_exception_passes) {
  const RandomScope start({.seed = 4}, kCpu);
  try {
    const RandomScope inner({.seed = 5}, kCpu);
    at::rand({7});
    throw 1;
  } catch (int) {
  }
  const at::Tensor after = at::rand({4});
  const RandomScope again({.seed = 4}, kCpu);
  EXPECT_TRUE(at::equal(after, at::rand({4})));
}
