#include <gtest/gtest.h>

#include "board/top_screen.h"

using namespace lockstep;
using nlohmann::json;

namespace {

json run_of(const std::string& name, const std::string& state, double updated) {
  return {
      {"id", name},      {"name", name},       {"state", state},
      {"step", 12},      {"total_steps", 100}, {"world_size", 2},
      {"recoveries", 1}, {"updated", updated}, {"latest", {{"loss", 1.25}, {"tok/s", 64000.0}}}};
}

}  // namespace

TEST(Top, cells_are_as_wide_as_wanted_and_obey_nobody) {
  EXPECT_EQ(terminal_cell("abc", 5), "abc  ");
  EXPECT_EQ(terminal_cell("abc", 5, /*to_right=*/true), "  abc");
  EXPECT_EQ(terminal_cell("abcdef", 3), "abc");
  EXPECT_EQ(terminal_cell("\x1b[31mred\r\n", 10), "?[31mred??");
  EXPECT_EQ(terminal_cell("\xc2\x9b"
                          "1A",
                          4),
            "?1A ");
  EXPECT_EQ(terminal_cell("ä\xff", 4), "ä\xef\xbf\xbd  ");
}

TEST(Top, a_line_of_blocks_rises_with_the_values) {
  EXPECT_EQ(spark_line({0, 1, 2, 3, 4, 5, 6, 7}, 8), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(spark_line({0, 0, 7, 7}, 2), "▁█");
  EXPECT_EQ(spark_line({5, 5}, 4), "  ▁▁");
  EXPECT_EQ(spark_line({}, 3), "   ");
}

TEST(Top, runs_that_run_come_first_and_the_chosen_one_stays_in_sight) {
  json runs = json::array(
      {run_of("old", "finished", 1), run_of("new", "finished", 5), run_of("now", "running", 2)});
  sort_for_top(runs);
  EXPECT_EQ(runs[0]["name"], "now");
  EXPECT_EQ(runs[1]["name"], "new");
  for (int i = 0; i < 30; ++i) runs.push_back(run_of("r" + std::to_string(i), "failed", 0));
  TopView view{.runs = runs, .series = json::object(), .events = json::object(), .chosen = 25};
  view.events = {{"events", {{{"kind", "note"}, {"time", 1.0}, {"text", "\x1b[2J"}}}}};
  view.series = {{"series", {{"loss", {{"mean", {3, 2, nullptr, 1}}}}}}};
  view.width = 110;
  const std::vector<std::string> lines = top_screen(view);
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  EXPECT_NE(all.find("> r22"), all.npos) << all;
  EXPECT_NE(all.find("12/100"), all.npos);
  EXPECT_NE(all.find("24 more"), all.npos) << all;
  EXPECT_NE(all.find("loss"), all.npos);
  EXPECT_EQ(all.find('\x1b'), all.npos);
  EXPECT_LE(lines.size(), view.height);
}
