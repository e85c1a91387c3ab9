// What a training run sees when its disk misbehaves: lines, and never an end.
#include <dlfcn.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>
#include <filesystem>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "lockstep/snapshot.h"
#include "lockstep/world.h"
#include "tests/core/temporary_folder.h"
#include "tests/snapshot/support.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

namespace fs = std::filesystem;

// A small disk of its own, where the test may mount one.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& path) : path_(path) {
    fs::create_directories(path);
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=256k") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool is_mounted() const { return mounted_; }
  bool make_read_only() {
    return ::mount("tmpfs", path_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=256k") == 0;
  }
  bool make_writable() {
    return ::mount("tmpfs", path_.c_str(), "tmpfs", MS_REMOUNT, "size=256k") == 0;
  }

 private:
  std::string path_;
  bool mounted_ = false;
};

// About 70 kB.
Snapshot larger_snapshot(std::int64_t step) {
  Snapshot snapshot = some_snapshot(step);
  snapshot.parts["model"].tensors["large"] = at::full({17000}, static_cast<double>(step));
  return snapshot;
}

}  // namespace

TEST(StoreFaults, a_full_disk_costs_no_snapshot_and_saves_go_on_when_there_is_room_again) {
  const TemporaryFolder folder;
  const SmallDisk disk(folder / "disk");
  if (!disk.is_mounted()) GTEST_SKIP() << "no file system can be mounted here";
  World world = init();
  Lines lines;
  SnapshotStore store(world,
                      {.directory = folder / "disk/s", .keep_last = 0, .report = lines.sink()});
  for (int step = 1; step <= 6; ++step) store.save(larger_snapshot(step));
  store.wait();
  ASSERT_TRUE(store.last_saved().has_value());
  const std::int64_t last = *store.last_saved();
  EXPECT_LT(last, 6);
  ASSERT_EQ(lines.all().size(), static_cast<std::size_t>(6 - last));
  EXPECT_TRUE(has(lines.all()[0], "No space left")) << lines.all()[0];
  EXPECT_TRUE(has(lines.all()[0], "older snapshots are as they were")) << lines.all()[0];
  expect_same(*store.load_newest(), larger_snapshot(last));
  fs::remove_all(folder / "disk/s/step_1");
  store.save(larger_snapshot(7));
  expect_same(*store.load_newest(), larger_snapshot(7));
  EXPECT_EQ(store.last_error(), "");
}

TEST(StoreFaults, a_directory_that_becomes_read_only_is_reported_and_still_loads) {
  const TemporaryFolder folder;
  SmallDisk disk(folder / "disk");
  if (!disk.is_mounted()) GTEST_SKIP() << "no file system can be mounted here";
  World world = init();
  {
    SnapshotStore store(world, {.directory = folder / "disk/s"});
    store.save(some_snapshot(1));
  }
  ASSERT_TRUE(disk.make_read_only());
  Lines lines;
  SnapshotStore store(world, {.directory = folder / "disk/s", .report = lines.sink()});
  store.save(some_snapshot(2));
  store.wait();
  ASSERT_EQ(lines.all().size(), 2u);  // at the start, and for the save
  EXPECT_TRUE(has(lines.all()[0], "Read-only")) << lines.all()[0];
  EXPECT_TRUE(has(lines.all()[1], "step 2 is not saved")) << lines.all()[1];
  expect_same(*store.load_newest(), some_snapshot(1));
  ASSERT_TRUE(disk.make_writable());
}

TEST(StoreFaults, a_limit_on_the_size_of_files_does_not_end_the_process) {
  const TemporaryFolder folder;
  World world = init();
  Lines lines;
  SnapshotStore store(world, {.directory = folder / "s", .report = lines.sink()});
  store.save(some_snapshot(1));
  store.wait();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 10'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  store.save(larger_snapshot(2));
  store.wait();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(lines.all().size(), 1u);
  expect_same(*store.load_newest(), some_snapshot(1));
}

TEST(StoreFaults, each_damaged_snapshot_is_skipped_with_one_line) {
  const TemporaryFolder folder;
  World world = init();
  Lines lines;
  SnapshotStore store(world, {.directory = folder / "s", .keep_last = 0, .report = lines.sink()});
  for (int step = 1; step <= 6; ++step) store.save(some_snapshot(step));
  store.wait();
  flip_bit(folder / "s/step_6/model.safetensors", 700, 3);
  flip_bit(folder / "s/step_5/manifest.json", 40);
  flip_bit(folder / "s/step_4/state.json", 10);
  fs::resize_file(folder / "s/step_3/optimizer.safetensors", 20);
  fs::remove(folder / "s/step_2/manifest.json");
  expect_same(*store.load_newest(), some_snapshot(1));
  const auto all = lines.all();
  ASSERT_EQ(all.size(), 5u);
  for (const char* name : {"step_2", "step_3", "step_4", "step_5", "step_6"}) {
    int mentions = 0;
    for (const std::string& line : all) mentions += has(line, concat("/", name, "'")) ? 1 : 0;
    EXPECT_EQ(mentions, 1) << name;
  }
  EXPECT_FALSE(store.load_step(4).has_value());
  // The steps are saved again over the damaged ones.
  store.save(some_snapshot(5));
  expect_same(*store.load_newest(), some_snapshot(5));
}

TEST(StoreFaults, a_damaged_best_is_reported_and_not_replaced_by_another) {
  const TemporaryFolder folder;
  World world = init();
  Lines lines;
  SnapshotStore store(world, {.directory = folder / "s", .report = lines.sink()});
  store.save(some_snapshot(1), {.best = true});
  store.save(some_snapshot(2));
  store.wait();
  flip_bit(folder / "s/step_1/model.safetensors", 700);
  EXPECT_FALSE(store.load_best().has_value());
  EXPECT_EQ(lines.all().size(), 1u);
}

RANKS_TEST_WITH(StoreFaults, an_error_at_any_system_call_of_a_save_is_a_line_and_no_more,
                {.count = 1,
                 .environment = {{"LD_PRELOAD", LOCKSTEP_FAULT_LIBRARY}, {"TMPDIR", "/dev/shm"}}}) {
  const auto set = reinterpret_cast<void (*)(const char*, long, const char*)>(
      ::dlsym(RTLD_DEFAULT, "lockstep_fault_set"));
  const auto count = reinterpret_cast<long (*)()>(::dlsym(RTLD_DEFAULT, "lockstep_fault_count"));
  ASSERT_TRUE(set != nullptr && count != nullptr);
  const TemporaryFolder folder;
  World world = init();
  Lines lines;
  SnapshotStore store(world, {.directory = folder / "s", .keep_last = 2, .report = lines.sink()});
  std::int64_t step = 0;
  for (const char* kind : {"ENOSPC", "EIO"}) {
    for (int i = 0; i < 3; ++i) store.save(some_snapshot(++step));
    store.wait();
    int failures = 0;
    for (long at = 1;; ++at) {
      const std::int64_t before = *store.last_saved();
      const std::size_t lines_before = lines.all().size();
      set((folder / "s").c_str(), at, kind);
      store.save(some_snapshot(++step));
      store.wait();
      const bool was_hit = count() >= at;
      set((folder / "s").c_str(), 0, kind);
      const std::int64_t newest = *store.last_saved();
      EXPECT_TRUE(newest == step || newest == before) << kind << " at " << at;
      // Whatever is not saved, or not all of it, has its line. (A hint to the disk, a file that is
      // looked for and need not be there: those may fail in silence.)
      EXPECT_TRUE(newest == step || lines.all().size() == lines_before + 1) << kind << " at " << at;
      failures += newest == before ? 1 : 0;
      const auto loaded = store.load_newest();
      ASSERT_TRUE(loaded.has_value());
      // A save whose last sync failed may have arrived all the same.
      EXPECT_TRUE(loaded->step == newest || loaded->step == step) << kind << " at " << at;
      expect_same(*loaded, some_snapshot(loaded->step));
      if (::testing::Test::HasFailure() || !was_hit) break;
    }
    EXPECT_GT(failures, 10) << kind;
  }
}

RANKS_TEST(StoreFaults, a_second_job_on_the_directory_is_refused_on_every_rank, 2) {
  // Each rank is a job of its own here; rank 0's comes first.
  World world = init();
  TemporaryFolder mine;
  const std::string folder = world.group().broadcast_string(mine / "s");
  const auto alone = [&](const std::string& name) {
    return init({.init_method = concat("file://", mine / name), .rank = 0, .world_size = 1});
  };
  if (this_rank() == 0) {
    World own = alone("meeting");
    SnapshotStore store(own, {.directory = folder});
    world.barrier();
    store.save(some_snapshot(1));
    world.barrier();
    EXPECT_EQ(store.load_newest()->step, 1);
  } else {
    world.barrier();
    World own = alone("meeting");
    try {
      SnapshotStore store(own, {.directory = folder});
      ADD_FAILURE() << "two jobs save into one directory";
    } catch (const InvalidArgument& error) {
      EXPECT_TRUE(has(error.what(), "another job saves into")) << error.what();
      EXPECT_TRUE(has(error.what(), folder)) << error.what();
    }
    world.barrier();
  }
  world.barrier();
}
