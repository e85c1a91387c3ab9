#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"
#include "track/protobuf.h"
#include "track/wandb_file.h"
#include "track/wandb_run.h"

using namespace lockstep;
using lockstep::testing::read_text;
using lockstep::testing::TemporaryFolder;

namespace {

// The rows of all files of a run, those of the oldest start first.
std::vector<std::pair<std::int64_t, std::int64_t>> rows_below(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".wandb") files.push_back(entry.path().string());
  }
  std::ranges::sort(files);
  std::vector<std::pair<std::int64_t, std::int64_t>> rows;
  for (const std::string& file : files) {
    for (const WandbRecord& record : parse_wandb_file(read_text(file))) {
      if (const auto row = wandb_row(record.bytes)) rows.emplace_back(row->number, row->step);
    }
  }
  return rows;
}

TrackerOptions with_wandb(const std::string& directory, WandbOptions options = {}) {
  return {.directory = directory,
          .tracking = {.wandb = true, .wandb_options = options},
          .patience = std::chrono::minutes(1)};
}

}  // namespace

TEST(WandbFile, records_of_any_length_are_read_back) {
  std::string file = wandb_file_header();
  std::vector<std::string> records;
  for (const std::size_t size : {0, 1, 100, 32754, 32755, 32756, 40000, 100000, 5}) {
    records.push_back(std::string(size, static_cast<char>('a' + records.size())));
    file += wandb_chunks(records.back(), file.size());
  }
  const auto found = parse_wandb_file(file);
  ASSERT_EQ(found.size(), records.size());
  for (std::size_t i = 0; i < records.size(); ++i) EXPECT_EQ(found[i].bytes, records[i]) << i;
}

TEST(WandbFile, a_file_cut_at_any_byte_has_its_whole_records) {
  std::string file = wandb_file_header();
  std::vector<std::size_t> ends;
  for (int i = 0; i < 5; ++i) {
    file += wandb_chunks(std::string(20, 'x'), file.size());
    ends.push_back(file.size());
  }
  for (std::size_t size = 0; size <= file.size(); ++size) {
    const auto whole = std::ranges::count_if(ends, [&](std::size_t end) { return end <= size; });
    EXPECT_EQ(std::ssize(parse_wandb_file(file.substr(0, size))), whole) << size;
  }
  file[30] ^= 1;
  EXPECT_EQ(parse_wandb_file(file).size(), 0u) << "damage is seen";
}

TEST(WandbRun, ids_names_and_groups_follow_the_experiment) {
  using Runs = WandbOptions::Runs;
  TrackerOptions options = with_wandb("/data/exp_7/", {.runs = Runs::rank});
  options.rank = 3;
  options.local_rank = 1;
  options.node_rank = 1;
  const auto rank = wandb_run(options, {});
  ASSERT_TRUE(rank);
  EXPECT_EQ(rank->id, "exp_7-3");
  EXPECT_EQ(rank->name, "rank-3");
  EXPECT_EQ(rank->options.group, "exp_7");
  EXPECT_EQ(rank->options.project, "lockstep");
  options.tracking.wandb_options.runs = Runs::node;
  EXPECT_FALSE(wandb_run(options, {})) << "not the first of its node";
  options.local_rank = 0;
  EXPECT_EQ(wandb_run(options, {})->id, "exp_7-node-1");
  options.tracking.wandb_options.runs = Runs::rank_0;
  EXPECT_FALSE(wandb_run(options, {}));
  options.rank = 0;
  EXPECT_EQ(wandb_run(options, {})->id, "exp_7");
}

TEST(WandbRun, variables_of_w_and_b_count_where_nothing_else_is_said) {
  const auto run =
      wandb_run(with_wandb("/data/run", {.project = "mine"}), {{"WANDB_PROJECT", "other"},
                                                               {"WANDB_RUN_ID", "a/b"},
                                                               {"WANDB_RUN_GROUP", "g"},
                                                               {"WANDB_TAGS", "x,y"},
                                                               {"WANDB_RESUME", "must"}});
  EXPECT_EQ(run->options.project, "mine");
  EXPECT_EQ(run->id, "a-b") << "an id is a part of the names of folders";
  EXPECT_EQ(run->options.group, "g");
  EXPECT_EQ(run->options.tags, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(run->options.resume, WandbOptions::Resume::must);
  EXPECT_FALSE(wandb_run(with_wandb("/data/run"), {{"WANDB_MODE", "disabled"}}));
  EXPECT_THROW(wandb_run(with_wandb("/data/run"), {{"WANDB_RESUME", "yes"}}), InvalidArgument);
}

TEST(WandbSink, a_run_that_goes_on_has_each_row_once) {
  const TemporaryFolder folder;
  const std::string directory = folder / "run";
  {
    Tracker tracker(with_wandb(directory));
    for (int step = 10; step <= 80; step += 10) tracker.metrics(step, {{"loss", step}});
    tracker.finish(true);
  }
  {
    TrackerOptions options = with_wandb(directory);
    options.place = {.lines = 5, .step = 50};
    Tracker tracker(options);
    for (int step = 60; step <= 70; step += 10) tracker.metrics(step, {{"loss", -step}});
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> expected;
  for (std::int64_t row = 0; row < 7; ++row) expected.emplace_back(row, 10 * row + 10);
  EXPECT_EQ(rows_below(directory), expected);
}

TEST(WandbSink, what_the_one_before_did_not_come_to_write_is_taken_from_the_metrics) {
  const TemporaryFolder folder;
  const std::string directory = folder / "run";
  { Tracker(with_wandb(directory)).metrics(1, {{"loss", 1}}); }
  // As if it had been killed between two files.
  std::ofstream(directory + "/metrics/rank_0.jsonl", std::ios::app)
      << "{\"step\":2,\"time\":1.5,\"loss\":2}\n";
  TrackerOptions options = with_wandb(directory);
  options.place = {.lines = 2, .step = 2};
  {
    Tracker tracker(options);
    tracker.metrics(3, {{"loss", 3}});
  }
  EXPECT_EQ(rows_below(directory),
            (std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 1}, {1, 2}, {2, 3}}));
}

TEST(WandbSink, rows_of_a_run_that_begins_anew_are_put_aside) {
  const TemporaryFolder folder;
  const std::string directory = folder / "run";
  { Tracker(with_wandb(directory)).metrics(1, {{"loss", 1}}); }
  std::filesystem::remove(directory + "/metrics/rank_0.jsonl");
  TrackerOptions options = with_wandb(directory);
  options.place = TrackPlace{};
  { Tracker(options).metrics(1, {{"loss", 2}}); }
  EXPECT_EQ(rows_below(directory).size(), 1u);
}

TEST(WandbSink, resume_must_and_never_are_obeyed_and_do_not_stop_the_run) {
  const TemporaryFolder folder;
  std::vector<std::string> lines;
  const auto track = [&](WandbOptions::Resume resume) {
    lines.clear();
    TrackerOptions options = with_wandb(folder / "run", {.resume = resume});
    options.report = [&](const std::string& line) { lines.push_back(line); };
    Tracker tracker(options);
    tracker.metrics(1, {{"loss", 1}});
    EXPECT_TRUE(tracker.flush());
  };
  track(WandbOptions::Resume::must);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("there is no run run"), std::string::npos) << lines[0];
  track(WandbOptions::Resume::never);
  EXPECT_TRUE(lines.empty());
  track(WandbOptions::Resume::never);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("there is a run run"), std::string::npos) << lines[0];
}

TEST(Protobuf, what_is_written_is_read_back_and_damage_ends_it) {
  const std::string bytes = ProtoMessage()
                                .integer(1, -5)
                                .real(2, 2.5)
                                .text(3, "three")
                                .message(16, ProtoMessage().integer(1, 7))
                                .bytes();
  ProtoFields fields(bytes);
  ASSERT_TRUE(fields.next());
  EXPECT_EQ(fields.integer(), -5);
  ASSERT_TRUE(fields.next());
  EXPECT_EQ(fields.text().size(), 8u);
  ASSERT_TRUE(fields.next());
  EXPECT_EQ(fields.text(), "three");
  ASSERT_TRUE(fields.next());
  EXPECT_EQ(fields.field(), 16);
  EXPECT_FALSE(fields.next());
  ProtoFields cut(std::string_view(bytes).substr(0, bytes.size() - 1));
  int whole = 0;
  while (cut.next()) ++whole;
  EXPECT_EQ(whole, 3);
}
