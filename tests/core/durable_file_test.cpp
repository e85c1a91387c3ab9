#include "core/durable_file.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"

using lockstep::write_durably;
using lockstep::testing::read_text;
using lockstep::testing::TemporaryFolder;

namespace {

std::ptrdiff_t entries_in(const TemporaryFolder& folder) {
  return std::distance(std::filesystem::directory_iterator(folder.path()), {});
}

}  // namespace

TEST(DurableFile, a_file_is_made_and_replaced_and_nothing_else_is_left) {
  const TemporaryFolder folder;
  write_durably(folder / "job.json", "old");
  EXPECT_EQ(read_text(folder / "job.json"), "old");
  write_durably(folder / "job.json", std::string(100000, 'x'));
  EXPECT_EQ(read_text(folder / "job.json"), std::string(100000, 'x'));
  EXPECT_EQ(entries_in(folder), 1);
}

TEST(DurableFile, what_cannot_be_replaced_stays_and_no_temporary_file_is_left) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "taken/full");
  EXPECT_THROW(write_durably(folder / "taken", "new"), lockstep::SystemError);
  EXPECT_THROW(write_durably(folder / "missing/file", "new"), lockstep::SystemError);
  EXPECT_TRUE(std::filesystem::is_directory(folder / "taken/full"));
  EXPECT_EQ(entries_in(folder), 1);
}
