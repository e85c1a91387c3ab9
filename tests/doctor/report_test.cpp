#include "doctor/report.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "doctor/pair_table.h"

namespace lockstep {
namespace {

Finding finding(const std::string& node, FindingLevel level, const std::string& what) {
  return {.node = node,
          .check = "clock",
          .level = level,
          .what = what,
          .cure = level == FindingLevel::ok ? "" : "set it"};
}

DoctorReport three_nodes() {
  DoctorReport report;
  report.nodes = {"n1", "n2", "n3"};
  report.seconds = 4.12;
  report.findings = {finding("n2", FindingLevel::error, "wrong"),
                     finding("n1", FindingLevel::warning, "free"),
                     finding("n2", FindingLevel::warning, "free"),
                     finding("n3", FindingLevel::warning, "free"),
                     {.node = "n1", .check = "disk", .level = FindingLevel::ok, .what = "empty"}};
  return report;
}

TEST(DoctorReport, what_nodes_share_is_said_once_and_errors_last) {
  EXPECT_EQ(to_text(three_nodes(), ReportDetail::usual),
            "  ok       all nodes: disk\n"
            "  warning  all nodes: clock: free -> set it\n"
            "  error    n2: clock: wrong -> set it\n"
            "doctor: 1 error, 3 warnings on 3 nodes (4.1 s)\n");
  EXPECT_EQ(three_nodes().exit_code(), 1);
}

TEST(DoctorReport, quiet_leaves_out_what_is_well_and_verbose_nothing) {
  EXPECT_EQ(to_text(three_nodes(), ReportDetail::problems).find("disk"), std::string::npos);
  EXPECT_NE(to_text(three_nodes(), ReportDetail::all).find("n1: disk: empty"), std::string::npos);
}

TEST(DoctorReport, one_node_needs_no_name) {
  DoctorReport report;
  report.nodes = {"n1"};
  report.findings = {finding("n1", FindingLevel::ok, "right")};
  EXPECT_EQ(to_text(report, ReportDetail::usual),
            "  ok       clock: right\ndoctor: all is well on 1 node (0.0 s)\n");
  EXPECT_EQ(report.exit_code(), 0);
}

TEST(DoctorReport, what_a_node_says_cannot_move_the_cursor) {
  DoctorReport report = three_nodes();
  report.findings[0].what = "\x1b[2Jgone\n";
  EXPECT_EQ(to_text(report, ReportDetail::usual).find('\x1b'), std::string::npos);
}

TEST(DoctorReport, json_has_all_of_it) {
  DoctorReport report = three_nodes();
  report.pairs = {{.from = 0, .to = 1, .address = "10.0.0.2", .main = true, .latency_us = 40},
                  {.from = 1, .to = 0, .address = "10.0.0.1", .problem = "no route"}};
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["nodes"].size(), 3u);
  EXPECT_EQ(json["errors"], 1);
  EXPECT_EQ(json["findings"][0]["level"], "error");
  EXPECT_EQ(json["pairs"][0]["to"], "n2");
  EXPECT_EQ(json["pairs"][1]["problem"], "no route");
}

TEST(PairTable, rows_reach_columns) {
  const std::vector<PairResult> pairs = {
      {.from = 0, .to = 1, .main = true, .latency_us = 43.2, .bytes_per_second = 1.25e9},
      {.from = 1, .to = 0, .main = true, .problem = "refused"},
      {.from = 0, .to = 1, .address = "another", .problem = "not shown"}};
  EXPECT_EQ(pair_table({"n1", "n2"}, pairs),
            "  from \\ to  n1      n2\n"
            "  n1         -       43 us, 10 Gbit/s\n"
            "  n2         no way  -\n");
  EXPECT_EQ(pair_table({"n1", "n2"}, {}), "");
}

TEST(PairTable, many_nodes_show_the_slowest_pairs) {
  std::vector<std::string> nodes;
  std::vector<PairResult> pairs;
  for (int at = 0; at < 20; ++at) {
    nodes.push_back("n" + std::to_string(at));
    pairs.push_back({.from = at,
                     .to = (at + 1) % 20,
                     .main = true,
                     .latency_us = 100.0 + at,
                     .bytes_per_second = at == 7 ? 1e6 : 1e9});
  }
  const std::string text = pair_table(nodes, pairs);
  EXPECT_NE(text.find("20 pairs"), std::string::npos);
  EXPECT_LT(text.find("n7 to n8: 107 us, 8 Mbit/s"), text.find("n0 to n1"));
}

}  // namespace
}  // namespace lockstep
