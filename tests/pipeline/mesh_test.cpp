#include "lockstep/mesh.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/world.h"
#include "tests/support/ranks.h"
#include "tests/support/refusal.h"

using namespace lockstep;
using namespace lockstep::testing;

TEST(MeshShape, the_last_dimension_is_the_fastest) {
  const MeshShape shape({{"pipeline", 2}, {"data", 3}});
  EXPECT_EQ(shape.ranks(), 6);
  EXPECT_EQ(shape.coordinates_of(4), (std::vector<int>{1, 1}));
  EXPECT_EQ(shape.rank_at({1, 2}), 5);
  EXPECT_EQ(shape.along(0, 4), (std::vector<int>{1, 4}));
  EXPECT_EQ(shape.along(1, 4), (std::vector<int>{3, 4, 5}));
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(shape.rank_at(shape.coordinates_of(rank)), rank);
  }
}

TEST(MeshShape, bad_shapes_are_refused_in_one_line) {
  EXPECT_EQ(refusal([] { MeshShape({}); }), "Mesh: there is no dimension");
  EXPECT_EQ(refusal([] {
              MeshShape({{"data", 0}});
            }),
            "Mesh: dimension 'data' has size 0; it must be at least 1");
  EXPECT_EQ(refusal([] {
              MeshShape({{"a", 1}, {"a", 2}});
            }),
            "Mesh: two dimensions are called 'a'");
  EXPECT_EQ(refusal([] {
              MeshShape({{"a", 2}, {"b", 2}}).index("c");
            }),
            "Mesh: there is no dimension 'c' in a 2 x b 2");
}

RANKS_TEST(Mesh, has_a_group_along_each_dimension, 4) {
  World world = init();
  Mesh mesh(world, {{"pipeline", 2}, {"data", 2}});
  EXPECT_EQ(mesh.coordinate("pipeline"), world.rank() / 2);
  EXPECT_EQ(mesh.coordinate("data"), world.rank() % 2);
  EXPECT_EQ(mesh.size("data"), 2);
  for (const char* dimension : {"pipeline", "data"}) {
    ProcessGroup group = mesh.group(dimension);
    EXPECT_EQ(group.rank(), mesh.coordinate(dimension));
    EXPECT_EQ(group.size(), 2);
    const at::Tensor sum = torch::tensor(1 << world.rank());
    group.all_reduce(sum);
    int expected = 0;
    for (const int rank : group.global_ranks()) expected += 1 << rank;
    EXPECT_EQ(sum.item<int>(), expected);
  }
  EXPECT_EQ(refusal([&] {
              Mesh(world, {{"pipeline", 4}, {"data", 2}});
            }),
            "Mesh: pipeline 4 x data 2 is 8 ranks; the world has 4");
  // Nobody has gone out of step by the refusal.
  world.barrier();
  Mesh line(world, {{"all", 4}, {"one", 1}});
  EXPECT_EQ(line.group("all").size(), 4);
  EXPECT_EQ(line.group("one").size(), 1);
}
