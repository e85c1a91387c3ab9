#include "track/metrics_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>

#include "tests/core/temporary_folder.h"
#include "track/json_text.h"

using namespace lockstep;
using lockstep::testing::read_text;
using lockstep::testing::TemporaryFolder;
using nlohmann::json;

namespace {

void put_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string lines_up_to(std::int64_t last) {
  std::string text;
  for (std::int64_t step = 1; step <= last; ++step) {
    text += metric_line({.step = step, .time = 0.5, .values = {{"loss", 1.0 / step}}}) + "\n";
  }
  return text;
}

}  // namespace

TEST(MetricsFile, numbers_are_written_as_json_and_read_back_to_the_last_bit) {
  for (const double number : {0.0, -0.0, 1.0, -3.0, 0.1, 1e-5, 1e22, 5e-324, 1.7976931348623157e308,
                              123456789012345680.0, 2.5e-7}) {
    std::string text;
    append_json_number(text, number);
    const nlohmann::json value = nlohmann::json::parse(text);
    EXPECT_TRUE(value.is_number_float()) << text;
    EXPECT_EQ(std::signbit(value.get<double>()), std::signbit(number)) << text;
    EXPECT_EQ(value.get<double>(), number) << text;
  }
  std::string text;
  append_json_name(text, "loss/\"a\"\n\xff");
  EXPECT_EQ(nlohmann::json::parse(text), "loss/\"a\"\n\xef\xbf\xbd");
}

TEST(MetricsFile, numbers_keep_all_their_bits_and_what_is_not_finite_is_null) {
  const double third = 1.0 / 3;
  const auto line = parse_metric_line(
      metric_line({.step = 7, .time = 1.25, .values = {{"a", third}, {"b", NAN}, {"c", 3}}}));
  ASSERT_TRUE(line);
  EXPECT_EQ(line->step, 7);
  EXPECT_EQ(line->time, 1.25);
  EXPECT_EQ(line->values["a"].get<double>(), third);
  EXPECT_TRUE(line->values["b"].is_null());
  EXPECT_EQ(line->values["c"], 3);
}

TEST(MetricsFile, a_file_cut_at_any_byte_loads_up_to_its_last_whole_line) {
  const std::string text = lines_up_to(4);
  for (std::size_t size = 0; size <= text.size(); ++size) {
    const std::string cut = text.substr(0, size);
    const MetricsContent content = parse_metrics(cut);
    EXPECT_EQ(std::ssize(content.lines), std::ranges::count(cut, '\n')) << size;
    EXPECT_EQ(content.skipped, 0) << size;
  }
}

TEST(MetricsFile, lines_that_are_no_metrics_are_skipped_and_counted) {
  const MetricsContent content = parse_metrics(
      "{\"step\":1,\"time\":2,\"loss\":3}\nnonsense\n{\"step\":\"x\",\"time\":1}\n"
      "{\"kind\":\"event\",\"step\":1,\"time\":1}\n{\"step\":2,\"time\":2,\"loss\":3}\n");
  EXPECT_EQ(content.lines.size(), 2u);
  EXPECT_EQ(content.skipped, 3);
}

TEST(MetricsFile, a_run_that_has_written_nothing_is_an_empty_one) {
  EXPECT_TRUE(read_metrics("/no/such/file").lines.empty());
}

TEST(MetricsFile, what_comes_after_the_place_is_dropped_by_lines_and_by_steps) {
  const TemporaryFolder folder;
  const std::string path = folder / "rank_0.jsonl";
  put_text(path, lines_up_to(10) + "{\"step\":11,\"ti");
  Continuation start = keep_metrics(path, {.lines = 8, .step = 100});
  EXPECT_EQ(start.kept, 8);
  EXPECT_EQ(read_text(path), lines_up_to(8)) << "by lines";
  start = keep_metrics(path, {.lines = 100, .step = 5});
  EXPECT_EQ(start.kept, 5);
  EXPECT_EQ(start.tail.back().step, 5);
  EXPECT_EQ(read_text(path), lines_up_to(5)) << "by steps";
}

TEST(MetricsFile, the_tail_has_the_last_64_lines) {
  const TemporaryFolder folder;
  const std::string path = folder / "rank_0.jsonl";
  put_text(path, lines_up_to(100));
  const Continuation start = keep_metrics(path, {.lines = 90, .step = 90});
  ASSERT_EQ(start.tail.size(), kTailLines);
  EXPECT_EQ(start.tail.front().step, 27);
  EXPECT_EQ(start.tail.back().step, 90);
}

TEST(MetricsFile, texts_of_steps_that_were_done_again_do_not_count) {
  const auto records = parse_track_records(
      "{\"kind\":\"start\",\"step\":0}\n"
      "{\"kind\":\"text\",\"step\":4,\"name\":\"a\",\"text\":\"kept\"}\n"
      "{\"kind\":\"text\",\"step\":8,\"name\":\"a\",\"text\":\"dropped\"}\n"
      "{\"kind\":\"system\",\"cpu\":3}\n"
      "{\"kind\":\"start\",\"step\":6}\n"
      "{\"kind\":\"text\",\"step\":8,\"name\":\"a\",\"text\":\"again\"}\n"
      "{\"kind\":\"text\",\"step\":9,\"na");
  std::vector<std::string> texts;
  for (const json& record : records) {
    if (record["kind"] == "text") texts.push_back(record["text"]);
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"kept", "again"}));
  EXPECT_EQ(records.size(), 5u);
}

TEST(MetricsFile, a_torn_line_is_cut_off_before_more_is_appended) {
  const TemporaryFolder folder;
  const std::string path = folder / "records.jsonl";
  put_text(path, "{\"kind\":\"event\"}\n{\"ki");
  cut_torn_line(path);
  EXPECT_EQ(read_text(path), "{\"kind\":\"event\"}\n");
}
