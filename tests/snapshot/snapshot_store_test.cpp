#include "lockstep/snapshot.h"

#include <filesystem>
#include <limits>
#include <mutex>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "lockstep/world.h"
#include "tests/core/temporary_folder.h"
#include "tests/snapshot/support.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

// A folder that all ranks of a test know, because the first one tells the others.
std::string shared_folder(World& world, TemporaryFolder& mine) {
  return world.group().broadcast_string(mine / "snapshots");
}

}  // namespace

TEST(SnapshotStore, what_is_saved_comes_back_bit_for_bit) {
  const TemporaryFolder folder;
  World world = init();
  const Snapshot saved = some_snapshot(7);
  {
    SnapshotStore store(world, {.directory = folder / "s"});
    store.save(saved);
    store.wait();
    EXPECT_EQ(store.last_saved(), 7);
    EXPECT_EQ(store.last_error(), "");
  }
  SnapshotStore store(world, {.directory = folder / "s"});
  const auto loaded = store.load_newest();
  ASSERT_TRUE(loaded.has_value());
  expect_same(*loaded, saved);
  expect_same(read_snapshot(folder / "s"), saved);
  expect_same(read_snapshot(folder / "s/latest"), saved);
}

TEST(SnapshotStore, an_empty_directory_has_no_snapshot) {
  const TemporaryFolder folder;
  World world = init();
  Lines lines;
  SnapshotStore store(world, {.directory = folder / "s", .report = lines.sink()});
  EXPECT_FALSE(store.load_newest().has_value());
  EXPECT_FALSE(store.load_best().has_value());
  EXPECT_FALSE(store.load_step(3).has_value());
  EXPECT_EQ(lines.all().size(), 0u);
}

TEST(SnapshotStore, training_may_go_on_while_the_copy_is_written) {
  const TemporaryFolder folder;
  World world = init();
  SnapshotStore store(world, {.directory = folder / "s"});
  Snapshot snapshot = some_snapshot(1);
  const Snapshot before = deep_copy(snapshot);
  store.save(snapshot);
  for (auto& [name, part] : snapshot.parts) {
    for (auto& [tensor_name, tensor] : part.tensors) tensor.zero_();
  }
  store.wait();
  expect_same(*store.load_newest(), before);
}

TEST(SnapshotStore, a_save_in_the_foreground_is_on_the_disk_when_it_returns) {
  const TemporaryFolder folder;
  World world = init();
  SnapshotStore store(world, {.directory = folder / "s", .background = false});
  const Snapshot saved = some_snapshot(5);
  store.save(saved);
  EXPECT_EQ(store.last_saved(), 5);
  expect_same(read_snapshot(folder / "s/step_5"), saved);
}

TEST(SnapshotStore, keeps_the_last_ones_and_the_best) {
  const TemporaryFolder folder;
  World world = init();
  SnapshotStore store(world, {.directory = folder / "s", .keep_last = 2});
  store.reserve(some_snapshot(0));
  for (int step = 1; step <= 6; ++step) store.save(some_snapshot(step), {.best = step == 2});
  store.wait();
  EXPECT_EQ(names_in(folder / "s"),
            (std::vector<std::string>{".lock", "best", "latest", "step_2", "step_5", "step_6"}));
  EXPECT_EQ(store.load_best()->step, 2);
  EXPECT_EQ(store.load_newest()->step, 6);
  EXPECT_EQ(store.load_step(5)->step, 5);
  EXPECT_FALSE(store.load_step(4).has_value());
}

TEST(SnapshotStore, the_newest_is_the_one_saved_last_and_not_the_one_with_the_highest_step) {
  const TemporaryFolder folder;
  World world = init();
  SnapshotStore store(world, {.directory = folder / "s"});
  store.save(some_snapshot(100));
  store.save(some_snapshot(200));
  // A run that was set back to step 100 and goes another way from there.
  store.save(some_snapshot(150));
  EXPECT_EQ(store.load_newest()->step, 150);
}

TEST(SnapshotStore, a_step_that_is_saved_again_replaces_the_old_one) {
  const TemporaryFolder folder;
  World world = init();
  SnapshotStore store(world, {.directory = folder / "s"});
  Snapshot snapshot = some_snapshot(3);
  store.save(snapshot);
  snapshot.parts["model"].tensors["weight"] = at::full({2, 3}, 8.0);
  store.save(snapshot);
  expect_same(*store.load_newest(), snapshot);
  EXPECT_EQ(names_in(folder / "s"), (std::vector<std::string>{".lock", "latest", "step_3"}));
}

TEST(SnapshotStore, values_that_json_cannot_hold_come_back) {
  const TemporaryFolder folder;
  World world = init();
  SnapshotStore store(world, {.directory = folder / "s"});
  Snapshot snapshot = some_snapshot(1);
  auto& values = snapshot.parts["trainer"].values;
  values["best"] = std::numeric_limits<double>::infinity();
  values["list"] = {1.5, -std::numeric_limits<double>::infinity()};
  values["a/b~c"] = std::numeric_limits<double>::quiet_NaN();
  values["tenth"] = 0.1;
  values["large"] = std::numeric_limits<std::uint64_t>::max();
  store.save(snapshot);
  const auto loaded = store.load_newest()->parts.at("trainer").values;
  EXPECT_EQ(loaded["best"], values["best"]);
  EXPECT_EQ(loaded["list"], values["list"]);
  EXPECT_TRUE(std::isnan(loaded["a/b~c"].get<double>()));
  EXPECT_EQ(loaded["tenth"], values["tenth"]);
  EXPECT_EQ(loaded["large"], values["large"]);
}

TEST(SnapshotStore, tied_tensors_are_saved_once_and_come_back_tied) {
  const TemporaryFolder folder;
  World world = init();
  SnapshotStore store(world, {.directory = folder / "s"});
  Snapshot snapshot;
  const at::Tensor weight = at::rand({100, 100});
  snapshot.parts["model"].tensors = {{"wte", weight}, {"lm_head", weight}, {"part", weight[3]}};
  store.save(snapshot);
  const auto loaded = store.load_newest()->parts.at("model").tensors;
  EXPECT_EQ(loaded.at("wte").data_ptr(), loaded.at("lm_head").data_ptr());
  EXPECT_TRUE(at::equal(loaded.at("wte"), weight));
  EXPECT_TRUE(at::equal(loaded.at("part"), weight[3]));
  EXPECT_LT(std::filesystem::file_size(folder / "s/step_0/model.safetensors"), 50'000u);
}

TEST(SnapshotStore, what_cannot_be_saved_is_reported_and_the_run_goes_on) {
  const TemporaryFolder folder;
  World world = init();
  Lines lines;
  SnapshotStore store(world, {.directory = folder / "s", .report = lines.sink()});
  store.save(some_snapshot(1));
  Snapshot bad = some_snapshot(2);
  bad.parts["model"].tensors["nothing"] = at::Tensor();
  store.save(bad);
  bad = some_snapshot(2);
  bad.parts["../model"] = {};
  store.save(bad);
  store.wait();
  ASSERT_EQ(lines.all().size(), 2u);
  EXPECT_TRUE(has(lines.all()[0], "'nothing'")) << lines.all()[0];
  EXPECT_TRUE(has(lines.all()[1], "'../model'")) << lines.all()[1];
  EXPECT_EQ(store.load_newest()->step, 1);
  EXPECT_NE(store.last_error(), "");
}

TEST(SnapshotStore, where_nodes_turn_out_to_share_a_disk_one_of_them_writes) {
  const TemporaryFolder folder;
  World world = init();
  Lines lines;
  SnapshotStore first(world, {.directory = folder / "s"});
  // The lock's holder is a process of this very job, as it is when two nodes share the directory.
  SnapshotStore second(world, {.directory = folder / "s", .report = lines.sink()});
  EXPECT_TRUE(first.writes());
  EXPECT_FALSE(second.writes());
  ASSERT_EQ(lines.all().size(), 1u);
  EXPECT_TRUE(has(lines.all()[0], "is shared")) << lines.all()[0];
}

RANKS_TEST(SnapshotStore, all_ranks_get_the_snapshot_of_the_rank_that_has_it, 3) {
  World world = init();
  TemporaryFolder mine;
  // No rank sees another's folder: only rank 0 writes, and only into its own.
  SnapshotStore store(world, {.directory = mine / "s"});
  EXPECT_EQ(store.writes(), this_rank() == 0);
  store.save(some_snapshot(4));
  store.wait();
  const auto loaded = store.load_newest();
  ASSERT_TRUE(loaded.has_value());
  expect_same(*loaded, some_snapshot(4));
  world.barrier();
}

RANKS_TEST(SnapshotStore, ranks_on_a_shared_disk_agree_on_the_newest_intact_one, 2) {
  World world = init();
  TemporaryFolder mine;
  Lines lines;
  const std::string folder = shared_folder(world, mine);
  {
    SnapshotStore store(world, {.directory = folder, .report = lines.sink()});
    for (int step = 1; step <= 3; ++step) store.save(some_snapshot(step));
    store.wait();
    world.barrier();
    if (this_rank() == 0) flip_bit(folder + "/step_3/model.safetensors", 700);
    const auto loaded = store.load_newest();
    ASSERT_TRUE(loaded.has_value());
    expect_same(*loaded, some_snapshot(2));
  }
  EXPECT_EQ(lines.all().size(), this_rank() == 0 ? 1u : 0u);
  world.barrier();
}

RANKS_TEST(SnapshotStore, in_a_world_that_is_formed_again_who_is_rank_0_now_writes, 3) {
  World world = init();
  TemporaryFolder mine;
  Lines lines;
  const std::string folder = shared_folder(world, mine);
  SnapshotStore store(world, {.directory = folder, .report = lines.sink()});
  EXPECT_EQ(store.writes(), this_rank() == 0);
  store.save(some_snapshot(1));
  world = init({.rank = 2 - this_rank(), .world_size = 3, .epoch = 1});
  store.readmit();
  EXPECT_EQ(store.writes(), this_rank() == 2);
  EXPECT_EQ(read_snapshot(folder).step, 1) << "it was on the disk before another could write";
  world.barrier();
  store.save(some_snapshot(2));
  store.wait();
  EXPECT_EQ(store.last_error(), "");
  world.barrier();
  const auto loaded = store.load_newest();
  ASSERT_TRUE(loaded.has_value());
  expect_same(*loaded, some_snapshot(2));
  // And back again, which is a world with one more process than the one before.
  world = init({.rank = this_rank(), .world_size = 3, .epoch = 2});
  store.readmit();
  EXPECT_EQ(store.writes(), this_rank() == 0);
  store.save(some_snapshot(3));
  store.wait();
  world.barrier();
  EXPECT_EQ(read_snapshot(folder).step, 3);
  EXPECT_EQ(lines.all().size(), 0u);
  world.barrier();
}

RANKS_TEST_WITH(SnapshotStore, each_node_keeps_a_copy_where_there_is_no_shared_disk,
                {.count = 2, .environment = {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}}) {
  World world = init();
  TemporaryFolder mine;
  Lines lines;
  SnapshotStore store(world, {.directory = mine / "s", .per_node = true, .report = lines.sink()});
  EXPECT_TRUE(store.writes());
  store.save(some_snapshot(1));
  store.save(some_snapshot(2));
  store.wait();
  EXPECT_EQ(store.last_saved(), 2);
  world.barrier();
  // The node of rank 0 loses its disk, and rank 1's newest copy is damaged: its older one is taken.
  if (this_rank() == 0) {
    for (const char* name : {"step_1", "step_2"})
      std::filesystem::remove_all((mine / "s") + "/" + name);
  } else {
    flip_bit(mine / "s/step_2/optimizer.safetensors", 150);
  }
  world.barrier();
  const auto loaded = store.load_newest();
  ASSERT_TRUE(loaded.has_value());
  expect_same(*loaded, some_snapshot(1));
  EXPECT_EQ(lines.all().size(), this_rank() == 0 ? 1u : 0u);
  world.barrier();
}
