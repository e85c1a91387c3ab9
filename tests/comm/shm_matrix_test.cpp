#include <gtest/gtest.h>

#include "lockstep/world.h"
#include "tests/comm/collective_matrix.h"
#include "tests/support/ranks.h"

// The same on one machine; hybrid_test.cpp has it on several.
using namespace lockstep;

namespace {

void expect_every_collective_in_memory() {
  World world = init({.backend = "shm"});
  EXPECT_EQ(world.group().backend(), "shm");
  lockstep::testing::expect_every_collective(world);
}

}  // namespace

RANKS_TEST(ShmMatrix, one_rank, 1) {
  expect_every_collective_in_memory();
}
RANKS_TEST(ShmMatrix, two_ranks, 2) {
  expect_every_collective_in_memory();
}
RANKS_TEST(ShmMatrix, three_ranks, 3) {
  expect_every_collective_in_memory();
}
RANKS_TEST(ShmMatrix, four_ranks, 4) {
  expect_every_collective_in_memory();
}
RANKS_TEST(ShmMatrix, five_ranks, 5) {
  expect_every_collective_in_memory();
}
