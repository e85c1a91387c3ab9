#include "launch/log_file.h"

#include <sys/resource.h>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launch/line_tail.h"
#include "tests/core/temporary_folder.h"

using lockstep::file_tail;
using lockstep::LineTail;
using lockstep::LogFile;
using lockstep::testing::read_text;
using lockstep::testing::TemporaryFolder;

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

TEST(LogFile, is_written_on_at_its_end) {
  const TemporaryFolder folder;
  std::ofstream(folder / "log") << "before\n";
  LogFile({.path = folder / "log"}).write("after\n");
  EXPECT_EQ(read_text(folder / "log"), "before\nafter\n");
}

TEST(LogFile, rotates_between_lines_and_keeps_five) {
  const TemporaryFolder folder;
  LogFile file({.path = folder / "log", .max_bytes = 20});
  std::string all;
  for (int i = 0; i < 40; ++i) all += "line " + std::to_string(i) + "\n";
  file.write(all);
  std::string kept;
  for (const char* name : {"log.5", "log.4", "log.3", "log.2", "log.1", "log"}) {
    const std::string text = read_text(folder / name);
    EXPECT_LE(text.size(), 20u) << name;
    EXPECT_TRUE(text.starts_with("line ") && text.ends_with("\n")) << name;
    kept += text;
  }
  EXPECT_FALSE(fs::exists(folder / "log.6"));
  EXPECT_TRUE(all.ends_with(kept));
}

TEST(LogFile, rotation_waits_for_the_end_of_a_line_that_came_in_parts) {
  const TemporaryFolder folder;
  LogFile file({.path = folder / "log", .max_bytes = 10});
  file.write("0123456");
  file.write("789abc\nnext\n");
  EXPECT_EQ(read_text(folder / "log.1"), "0123456789abc\n");
  EXPECT_EQ(read_text(folder / "log"), "next\n");
}

TEST(LogFile, a_line_without_end_does_not_defeat_rotation) {
  const TemporaryFolder folder;
  LogFile file({.path = folder / "log", .max_bytes = 1000});
  for (int i = 0; i < 100; ++i) file.write(std::string(10000, 'x'));
  EXPECT_TRUE(fs::exists(folder / "log.1"));
  EXPECT_LE(fs::file_size(folder / "log"), 200000u);
}

TEST(LogFile, a_full_disk_warns_once_and_says_later_what_is_missing) {
  const TemporaryFolder folder;
  std::vector<std::string> warnings;
  LogFile file(
      {.path = folder / "log", .warn = [&](const std::string& text) { warnings.push_back(text); }});
  // A limit on the size of files refuses writes as a full disk does.
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {.rlim_cur = 8, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  file.write("first\n");
  file.write("second\n");
  file.write("third\n");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  file.write("fourth\n");

  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0], "cannot write '" + (folder / "log") +
                             "': File too large; output is dropped until it can be written again");
  EXPECT_EQ(read_text(folder / "log"),
            "first\nse\n[lockstep: 11 bytes are missing here: File too large]\nfourth\n");
}

TEST(LogFile, a_file_that_cannot_be_opened_warns_once) {
  const TemporaryFolder folder;
  int warnings = 0;
  LogFile file({.path = folder / "missing/log", .warn = [&](const std::string&) { ++warnings; }});
  file.write("one\n");
  file.write("two\n");
  EXPECT_EQ(warnings, 1);
}

TEST(LineTail, keeps_the_last_twenty_lines_and_the_one_that_has_not_ended) {
  LineTail tail;
  for (int i = 0; i < 30; ++i) tail.add("line " + std::to_string(i) + "\n");
  tail.add("par");
  tail.add("tial");
  const Lines lines = tail.lines();
  ASSERT_EQ(lines.size(), 20u);
  EXPECT_EQ(lines.front(), "line 11");
  EXPECT_EQ(lines.back(), "partial");
}

TEST(LineTail, a_rewritten_line_counts_as_what_it_showed_last) {
  LineTail tail;
  tail.add("10%\r20");
  tail.add("%\r");
  tail.add("30%\r\nx\r\n\n");
  EXPECT_EQ(tail.lines(), (Lines{"30%", "x", ""}));
}

TEST(LineTail, a_line_is_kept_up_to_a_bound) {
  LineTail tail;
  for (int i = 0; i < 1000; ++i) tail.add(std::string(1000, 'x'));
  tail.add("\nshort\n");
  const Lines lines = tail.lines();
  EXPECT_EQ(lines[0].size(), lockstep::kTailLineBytes);
  EXPECT_TRUE(lines[0].ends_with("x..."));
  EXPECT_EQ(lines[1], "short");
}

TEST(FileTail, reads_the_end_of_a_file_however_long) {
  const TemporaryFolder folder;
  std::ofstream file(folder / "log");
  for (int i = 0; i < 100000; ++i) file << "line " << i << "\n";
  file << "partial";
  file.close();
  EXPECT_EQ(file_tail(folder / "log", 3), (Lines{"line 99998", "line 99999", "partial"}));
  EXPECT_EQ(file_tail(folder / "log").size(), 20u);
}

TEST(FileTail, leaves_out_what_an_earlier_worker_wrote) {
  const TemporaryFolder folder;
  std::ofstream(folder / "log") << "old\nnew\n";
  EXPECT_EQ(file_tail(folder / "log", 20, 4), (Lines{"new"}));
  EXPECT_EQ(file_tail(folder / "log", 20, 8), Lines{});
  EXPECT_EQ(file_tail(folder / "log", 20, 99), Lines{});
  EXPECT_EQ(file_tail(folder / "missing"), Lines{});
}
