#include "board/curve.h"

#include <cmath>
#include <fstream>

#include <gtest/gtest.h>

#include "board/metric_scan.h"
#include "board/metrics_view.h"
#include "board/rank_map.h"
#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"
#include "track/metrics_file.h"

using namespace lockstep;
using lockstep::testing::TemporaryFolder;

namespace {

void write_steps(const std::string& path, int first, int last, double slow = 1) {
  std::ofstream file(path, std::ios::app);
  for (int step = first; step <= last; ++step) {
    const double loss = step == 777 ? 50.0 : 1.0 / step;
    file << metric_line({.step = step,
                         .time = 1000.0 + step,
                         .values = {{"loss", loss}, {"time/total", slow * 5}}})
         << "\n";
  }
}

}  // namespace

TEST(Curve, few_points_are_kept_as_they_are) {
  Curve curve(16);
  for (int step = 1; step <= 10; ++step) curve.add(step, step, 2.0 * step);
  ASSERT_EQ(curve.buckets().size(), 10u);
  EXPECT_EQ(curve.buckets()[4].step, 5);
  EXPECT_EQ(curve.buckets()[4].mean(), 10.0);
}

TEST(Curve, a_spike_is_seen_however_many_points_there_are) {
  Curve curve(64);
  double sum = 0;
  for (int step = 1; step <= 100'000; ++step) {
    const double value = step == 43'210 ? 1e6 : 1.0;
    sum += value;
    curve.add(step, step, value);
  }
  EXPECT_LE(curve.buckets().size(), 64u);
  EXPECT_GT(curve.buckets().size(), 31u);
  double total = 0, highest = 0;
  std::uint64_t count = 0;
  for (const CurveBucket& bucket : curve.buckets()) {
    total += bucket.sum;
    count += bucket.count;
    highest = std::max(highest, bucket.max);
  }
  EXPECT_EQ(highest, 1e6);
  EXPECT_EQ(count, 100'000u);
  EXPECT_DOUBLE_EQ(total, sum);
  EXPECT_EQ(curve.buckets().back().step, 100'000);
}

TEST(Curve, what_is_not_finite_is_counted_and_spoils_nothing) {
  Curve curve(2);
  for (int step = 1; step <= 8; ++step) curve.add(step, step, step % 2 ? NAN : 3.0);
  std::uint32_t missing = 0;
  for (const CurveBucket& bucket : curve.buckets()) {
    EXPECT_EQ(bucket.mean(), 3.0);
    missing += bucket.missing;
  }
  EXPECT_EQ(missing, 4u);
  Curve none(2);
  none.add(1, 1, NAN);
  EXPECT_TRUE(std::isnan(none.buckets()[0].mean()));
}

TEST(Curve, fewer_buckets_hold_the_same_points) {
  Curve curve(1000);
  for (int step = 1; step <= 999; ++step) curve.add(step, step, step);
  const auto fewer = fewer_buckets(curve.buckets(), 10);
  ASSERT_LE(fewer.size(), 10u);
  EXPECT_EQ(fewer.front().min, 1);
  EXPECT_EQ(fewer.back().max, 999);
}

TEST(MetricScan, reads_what_the_reader_of_track_reads) {
  for (const char* line : {R"({"step":1,"time":2.5,"loss":0.25,"a/b":-3e-7,"none":null})",
                           R"({ "step" : 12 , "time" : 3 , "x" : 1E5 })",
                           R"({"step":1,"time":2,"a\u0041\"":1})",
                           R"({"step":1,"time":2,"nested":{"x":1},"y":2})",
                           R"({"step":1,"time":2,"text":"<b>","y":3})",
                           R"({"step":1.5,"time":2})",
                           R"({"step":1})",
                           R"({"time":1})",
                           R"({"step":1,"time":null})",
                           R"({"step":1,"time":2,"kind":3})",
                           R"({"step":01,"time":2})",
                           R"({"step":1,"time":2,"a":.5})",
                           R"({"step":1,"time":2,"a":1.})",
                           R"({"step":1,"time":2,"a":1.e3})",
                           R"({"step":1,"time":2,"a":nan})",
                           R"({"step":1,"time":2,"a":inf})",
                           R"({"step":-0,"time":2})",
                           R"({"step":1,"time":2,"a":-})",
                           R"({"step":1,"time":2,})",
                           R"({"step":1,"time":2} x)",
                           R"([1,2])",
                           R"()",
                           R"({})",
                           R"({"step":9223372036854775808,"time":2})",
                           "{\"step\":1,\"time\":2,\"\xff\":1}",
                           "{\"step\":1,\"time\":2,\"\xc3\xa4\":1}"}) {
    ScannedMetrics found;
    const auto expected = parse_metric_line(line);
    ASSERT_EQ(scan_metrics(line, found), expected.has_value()) << line;
    if (!expected) continue;
    EXPECT_EQ(found.step, expected->step) << line;
    EXPECT_EQ(found.time, expected->time) << line;
    std::size_t numbers = 0;
    for (const auto& [name, value] : expected->values.items()) {
      if (!value.is_number() && !value.is_null()) continue;
      ++numbers;
      const auto same = std::ranges::find(found.values, name, [](auto& e) { return e.first; });
      ASSERT_NE(same, found.values.end()) << line;
      if (value.is_number()) {
        EXPECT_EQ(same->second, value.get<double>()) << line;
      } else {
        EXPECT_TRUE(std::isnan(same->second)) << line;
      }
    }
    EXPECT_EQ(found.values.size(), numbers) << line;
  }
}

TEST(MetricsView, a_part_of_a_long_run_is_read_exactly) {
  const TemporaryFolder folder;
  write_steps(folder / "m", 1, 20'000);
  const RootFolder root(folder.path().string());
  MetricsView view("m");
  EXPECT_TRUE(view.poll(root));
  EXPECT_EQ(view.lines(), 20'000);
  const auto part = view.range(root, "loss", {.from = 770, .to = 780}, 100);
  ASSERT_EQ(part.size(), 11u);
  EXPECT_EQ(part[7].step, 777);
  EXPECT_EQ(part[7].max, 50.0);
  const auto by_time = view.range(root, "loss", {.by_time = true, .from = 1770, .to = 1780}, 100);
  EXPECT_EQ(by_time.size(), 11u);
  double highest = 0;
  for (const auto& bucket : view.range(root, "loss", {}, 50))
    highest = std::max(highest, bucket.max);
  EXPECT_EQ(highest, 50.0);
  EXPECT_TRUE(view.range(root, "unknown", {}, 50).empty());
}

TEST(MetricsView, what_is_appended_is_added_and_a_replaced_file_begins_anew) {
  const TemporaryFolder folder;
  const std::string path = folder / "m";
  const RootFolder root(folder.path().string());
  MetricsView view("m");
  EXPECT_FALSE(view.poll(root));
  write_steps(path, 1, 10);
  std::ofstream(path, std::ios::app) << R"({"step":11,"time":1,"lo)";
  EXPECT_TRUE(view.poll(root));
  EXPECT_EQ(view.last_step(), 10);
  EXPECT_FALSE(view.poll(root));
  std::ofstream(path, std::ios::app) << R"(ss":1})"
                                     << "\n";
  EXPECT_TRUE(view.poll(root));
  EXPECT_EQ(view.last_step(), 11);
  write_steps(path + ".new", 1, 4);
  ASSERT_EQ(std::rename((path + ".new").c_str(), path.c_str()), 0);
  EXPECT_TRUE(view.poll(root));
  EXPECT_EQ(view.last_step(), 4);
  EXPECT_EQ(view.lines(), 4);
}

TEST(MetricsView, names_without_end_do_not_fill_the_memory) {
  const TemporaryFolder folder;
  {
    std::ofstream file(folder / "m");
    for (int i = 0; i < 3000; ++i) {
      file << concat(R"({"step":)", i, R"(,"time":1,"name)", i, R"(":1})", "\n");
    }
  }
  const RootFolder root(folder.path().string());
  MetricsView view("m");
  view.poll(root);
  EXPECT_EQ(view.curves().size(), 500u);
}

TEST(RankMap, long_files_are_sampled_and_a_slow_rank_is_seen) {
  const TemporaryFolder folder;
  write_steps(folder / "0", 1, 30'000);
  write_steps(folder / "1", 1, 12'000);
  write_steps(folder / "1", 12'001, 30'000, /*slow=*/3);
  write_steps(folder / "2", 15'001, 30'000);  // came late
  const RootFolder root(folder.path().string());
  const RankMap map =
      read_rank_map(root, {{0, "0"}, {1, "1"}, {2, "2"}, {3, "missing"}}, "time/total", 100);
  EXPECT_EQ(map.ranks, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(map.first_step, 1);
  EXPECT_EQ(map.last_step, 30'000);
  for (std::size_t column = 0; column < 100; ++column) {
    EXPECT_EQ(map.values[0][column], 5.0) << column;
    if (column < 39 || column > 40) {
      EXPECT_EQ(map.values[1][column], column < 39 ? 5.0 : 15.0) << column;
    }
    EXPECT_EQ(std::isnan(map.values[2][column]), column < 50) << column;
  }
}

TEST(RankMap, a_short_run_has_a_column_for_each_step) {
  const TemporaryFolder folder;
  write_steps(folder / "0", 1, 5);
  const RootFolder root(folder.path().string());
  const RankMap map = read_rank_map(root, {{0, "0"}}, "loss", 100);
  EXPECT_EQ(map.values[0], (std::vector<double>{1, 0.5, 1.0 / 3, 0.25, 0.2}));
  EXPECT_TRUE(read_rank_map(root, {}, "loss", 100).ranks.empty());
}
