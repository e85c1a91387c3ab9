#include "archive/snapshot_directory.h"

#include <unistd.h>
#include <filesystem>
#include <sstream>

#include <gtest/gtest.h>

#include "archive/directory_lock.h"
#include "archive/durable_output.h"
#include "archive/manifest.h"
#include "core/checksum.h"
#include "tests/archive/files.h"
#include "tests/archive/some_files.h"
#include "tests/core/temporary_folder.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

namespace fs = std::filesystem;

std::string problem_of(const std::string& directory, std::int64_t step) {
  for (const FoundSnapshot& each : find_snapshots(directory)) {
    if (each.step == step) return find_damage(each);
  }
  return "not there";
}

// In place: writing a file anew makes some file systems sync it.
void flip_bit(const std::string& path, std::size_t byte, std::size_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(byte));
  const char changed = static_cast<char>(file.get() ^ 1 << bit);
  file.seekp(static_cast<std::streamoff>(byte));
  file.put(changed);
}

std::vector<std::string> names_of_snapshots(const std::string& directory) {
  std::vector<std::string> names;
  for (const FoundSnapshot& each : find_snapshots(directory)) names.push_back(each.name);
  return names;
}

}  // namespace

TEST(Checksum, is_xxh3_and_prints_as_its_tool_does) {
  EXPECT_EQ(checksum_text(checksum_of("")), "2d06800538d394c2");
  EXPECT_EQ(parse_checksum("2d06800538d394c2"), checksum_of(""));
  EXPECT_FALSE(parse_checksum("2D06800538D394C2").has_value());
  EXPECT_FALSE(parse_checksum("2d06800538d394c").has_value());
  Checksum pieces;
  pieces.update(bytes_of_text("hello "));
  pieces.update(bytes_of_text("world"));
  EXPECT_EQ(pieces.value(), checksum_of("hello world"));
}

TEST(Manifest, comes_back_as_it_was) {
  const Manifest manifest{.step = 12,
                          .epoch = 3,
                          .sequence = 40,
                          .slots = 8,
                          .seed = ~std::uint64_t{0},
                          .best = true,
                          .time = "2026-11-15T00:00:00Z",
                          .host = "node",
                          .files = {{"model.safetensors", {.bytes = 5, .checksum = 77}}}};
  EXPECT_EQ(parse_manifest(format_manifest(manifest)), manifest);
}

TEST(Manifest, any_flipped_bit_is_found) {
  const std::string good = format_manifest(
      {.step = 12, .time = "now", .host = "h", .files = {{"a", {.bytes = 5, .checksum = 77}}}});
  for (std::size_t byte = 0; byte < good.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[byte] = static_cast<char>(bad[byte] ^ 1 << bit);
      EXPECT_NE(refusal([&] { parse_manifest(bad); }), "accepted") << byte << " " << bit;
    }
  }
}

TEST(Manifest, a_newer_version_is_named) {
  std::string text = format_manifest({.step = 1});
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 9");
  EXPECT_TRUE(has(refusal([&] { parse_manifest(text); }), "version 9"));
}

TEST(Manifest, files_outside_the_folder_cannot_be_named) {
  for (const char* name : {"../x", "a/b", ".hidden", ""}) {
    const std::string text = format_manifest({.step = 1, .files = {{name, {}}}});
    EXPECT_NE(refusal([&] { parse_manifest(text); }), "accepted") << name;
  }
}

TEST(SnapshotDirectory, a_flipped_bit_in_any_file_is_found) {
  const TemporaryFolder folder;
  save_some(folder.path(), 1);
  for (const char* name : {"manifest.json", "model.safetensors", "state.json"}) {
    const std::string path = folder / concat("step_1/", name);
    const std::string good = read_text(path);
    for (std::size_t byte = 0; byte < good.size(); ++byte) {
      flip_bit(path, byte, byte % 8);
      EXPECT_NE(problem_of(folder.path(), 1), "") << name << " " << byte;
      flip_bit(path, byte, byte % 8);
    }
    EXPECT_EQ(problem_of(folder.path(), 1), "");
  }
}

TEST(SnapshotDirectory, a_file_cut_short_or_missing_or_too_long_is_found) {
  const TemporaryFolder folder;
  save_some(folder.path(), 1);
  for (const char* name : {"manifest.json", "model.safetensors", "state.json"}) {
    const std::string path = folder / concat("step_1/", name);
    const std::string good = read_text(path);
    for (std::size_t length = 0; length < good.size(); length += 1 + good.size() / 100) {
      write_text(path, good.substr(0, length));
      EXPECT_NE(problem_of(folder.path(), 1), "") << name << " " << length;
    }
    write_text(path, good + "x");
    EXPECT_NE(problem_of(folder.path(), 1), "") << name;
    fs::remove(path);
    EXPECT_NE(problem_of(folder.path(), 1), "") << name;
    write_text(path, good);
  }
}

TEST(SnapshotDirectory, a_snapshot_under_another_name_is_not_taken) {
  const TemporaryFolder folder;
  save_some(folder.path(), 1);
  fs::rename(folder / "step_1", folder / "step_2");
  EXPECT_TRUE(has(problem_of(folder.path(), 2), "step 1"));
}

TEST(SnapshotDirectory, other_names_are_not_snapshots) {
  for (const char* name :
       {"step_", "step_x", "step_-1", "step_007", "step_1x", "latest", "step_1 "}) {
    EXPECT_FALSE(step_of_name(name).has_value()) << name;
  }
  EXPECT_EQ(step_of_name("step_120"), 120);
  EXPECT_EQ(step_of_name("step_120.replaced"), 120);
}

TEST(SnapshotDirectory, old_ones_go_and_the_best_stays) {
  const TemporaryFolder folder;
  for (int step = 1; step <= 5; ++step) {
    save_some(folder.path(), step, {.keep_last = 2}, 3000, step == 2);
  }
  EXPECT_EQ(names_of_snapshots(folder.path()),
            (std::vector<std::string>{"step_5", "step_4", "step_2"}));
  EXPECT_EQ(read_pointer(folder.path(), kLatest), "step_5");
  EXPECT_EQ(read_pointer(folder.path(), kBest), "step_2");
}

TEST(SnapshotDirectory, damaged_ones_do_not_count_as_kept) {
  const TemporaryFolder folder;
  for (int step = 1; step <= 3; ++step) save_some(folder.path(), step, {.keep_last = 0});
  fs::remove(folder / "step_3/model.safetensors");
  write_text(folder / "step_2/manifest.json", "{}");
  // Of the two to keep, 4 is one, and 1 the only other that is whole.
  save_some(folder.path(), 4, {.keep_last = 2});
  const auto names = names_of_snapshots(folder.path());
  EXPECT_EQ(problem_of(folder.path(), 1), "");
  EXPECT_EQ(problem_of(folder.path(), 4), "");
  EXPECT_GE(names.size(), 2u);
}

TEST(SnapshotDirectory, a_pointer_can_be_a_file_where_there_are_no_links) {
  const TemporaryFolder folder;
  write_text(folder / "latest", "step_7\n");
  EXPECT_EQ(read_pointer(folder.path(), kLatest), "step_7");
  move_pointer(folder.path(), kLatest, "step_8");
  EXPECT_EQ(read_pointer(folder.path(), kLatest), "step_8");
  EXPECT_TRUE(fs::is_symlink(folder / "latest"));
  write_text(folder / "odd", "../elsewhere\n");
  EXPECT_FALSE(read_pointer(folder.path(), "odd").has_value());
}

TEST(SnapshotDirectory, pointers_that_a_killed_writer_left_behind_are_mended) {
  const TemporaryFolder folder;
  for (int step = 1; step <= 4; ++step) {
    save_some(folder.path(), step, {}, 3000, step == 1 || step == 3);
  }
  move_pointer(folder.path(), kLatest, "step_2");
  move_pointer(folder.path(), kBest, "step_1");
  mend_pointers(folder.path());
  EXPECT_EQ(read_pointer(folder.path(), kLatest), "step_4");
  EXPECT_EQ(read_pointer(folder.path(), kBest), "step_3");
}

TEST(SnapshotDirectory, no_pointer_is_made_without_a_target) {
  const TemporaryFolder folder;
  mend_pointers(folder.path());
  save_some(folder.path(), 1);
  mend_pointers(folder.path());
  EXPECT_FALSE(read_pointer(folder.path(), kBest).has_value());
}

TEST(DirectoryLock, a_second_one_is_refused_with_the_name_of_the_first) {
  const TemporaryFolder folder;
  const auto wait = std::chrono::milliseconds(30);
  DirectoryLock first = lock_directory(folder / "s", wait);
  EXPECT_EQ(first.outcome, DirectoryLock::Outcome::held);
  const DirectoryLock second = lock_directory(folder / "s", wait);
  EXPECT_EQ(second.outcome, DirectoryLock::Outcome::taken);
  EXPECT_EQ(second.holder, concat(host_name(), " ", ::getpid()));
  first.fd.reset();
  EXPECT_EQ(lock_directory(folder / "s", wait).outcome, DirectoryLock::Outcome::held);
}

TEST(DirectoryLock, a_directory_that_cannot_be_made_is_told) {
  const TemporaryFolder folder;
  write_text(folder / "file", "");
  const DirectoryLock lock = lock_directory(folder / "file/s", std::chrono::milliseconds(0));
  EXPECT_EQ(lock.outcome, DirectoryLock::Outcome::failed);
  EXPECT_TRUE(has(lock.reason, "file/s")) << lock.reason;
}

TEST(Leftovers, a_file_that_is_replaced_takes_the_attempts_of_dead_writers_along) {
  const TemporaryFolder folder;
  const auto attempt = [&](const std::string& file, pid_t pid, const std::string& host) {
    return folder / concat(file, ".tmp-p", pid, "@", host);
  };
  const auto dead = attempt("a.pt", 0x7ffffff0, host_name());
  const auto mine = attempt("a.pt", ::getpid(), host_name());  // of an earlier owner of my number
  const std::vector<fs::path> kept = {
      attempt("a.pt", ::getppid(), host_name()), attempt("a.pt", 0x7ffffff0, "elsewhere"),
      attempt("b.pt", 0x7ffffff0, host_name()), folder / concat("a.pt.tmp-pX@", host_name())};
  for (const fs::path& path : kept) write_text(path, "");
  write_text(dead, "");
  write_text(mine, "");
  const std::string text = "content";
  replace_durably(folder / "a.pt", text.size(),
                  [&](DurableOutput& output) { output.append(bytes_of_text(text)); });
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_FALSE(fs::exists(mine));
  for (const fs::path& path : kept) EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_EQ(fs::file_size(folder / "a.pt"), text.size());
}

TEST(Leftovers, those_of_dead_writers_go_and_those_of_living_ones_stay) {
  const TemporaryFolder folder;
  const std::string host = host_name();
  write_text(folder / ".lock", "");
  const std::string alive = concat(".tmp-e0-p", ::getppid(), "-n1-step_1@", host);
  const std::string dead = concat(".tmp-e0-p", 0x7ffffff0, "-n1-step_1@", host);
  const std::string foreign = ".tmp-e0-p1-n1-step_1@elsewhere";
  for (const std::string& name : {alive, dead, foreign}) fs::create_directory(folder / name);
  fs::create_directory(folder / ".tmp-mine");
  remove_leftovers(folder.path(), /*locked=*/false);
  EXPECT_TRUE(fs::exists(folder / alive));
  EXPECT_FALSE(fs::exists(folder / dead));
  EXPECT_TRUE(fs::exists(folder / foreign));
  EXPECT_TRUE(fs::exists(folder / ".tmp-mine"));
  // Who has the lock knows that no other writer of this machine lives.
  remove_leftovers(folder.path(), /*locked=*/true);
  EXPECT_FALSE(fs::exists(folder / alive));
  EXPECT_TRUE(fs::exists(folder / foreign));
  fs::last_write_time(folder / foreign, fs::file_time_type::clock::now() - std::chrono::hours(25));
  remove_leftovers(folder.path(), /*locked=*/true);
  EXPECT_FALSE(fs::exists(folder / foreign));
}
