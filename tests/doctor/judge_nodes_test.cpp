#include "doctor/judge_nodes.h"

#include <gtest/gtest.h>
#include <algorithm>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// Three nodes that agree in everything and reach each other.
Examination healthy_nodes() {
  Examination examination;
  examination.wanted_nodes = 3;
  for (int node = 0; node < 3; ++node) {
    const std::string address = concat("10.0.0.", node + 1);
    DeskNode each;
    each.hello.host = concat("n", node + 1);
    each.hello.traits = {{"lockstep", "1.0.0"}, {"torch", "2.11.0"}, {"GPUs", "8"}};
    each.hello.listeners = {{.address = address, .prefix_bits = 24, .port = 1}};
    each.main_address = address;
    examination.nodes.push_back(each);
    examination.clocks.push_back(Examination::Offset{.seconds = 0.001, .uncertainty = 0.002});
    examination.names.push_back(NamesAnswer{.names = {{.addresses = {"10.0.0.1"}},
                                                      {.addresses = {"10.0.0.2"}},
                                                      {.addresses = {"10.0.0.3"}}}});
  }
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      if (from == to) continue;
      examination.pairs.push_back({.from = from,
                                   .to = to,
                                   .address = concat("10.0.0.", to + 1),
                                   .main = true,
                                   .on_common_network = true,
                                   .latency_us = 50,
                                   .least_latency_us = 40,
                                   .bytes_per_second = 1e9,
                                   .path_mtu = 1500});
    }
  }
  return examination;
}

PairResult& pair_of(Examination& examination, int from, int to) {
  return *std::ranges::find_if(examination.pairs, [&](const PairResult& pair) {
    return pair.from == from && pair.to == to;
  });
}

// Findings that are not ok.
Findings problems_of(const Examination& examination) {
  Findings findings = judge_nodes(examination);
  std::erase_if(findings, [](const Finding& each) { return each.level == FindingLevel::ok; });
  for (const Finding& each : findings) EXPECT_FALSE(each.cure.empty()) << each.what;
  return findings;
}

void expect_one(const Examination& examination, const std::string& node, const std::string& check,
                FindingLevel level, const std::string& part) {
  const Findings findings = problems_of(examination);
  ASSERT_EQ(findings.size(), 1u) << (findings.empty() ? "" : findings.back().what);
  EXPECT_EQ(findings[0].node, node);
  EXPECT_EQ(findings[0].check, check);
  EXPECT_EQ(findings[0].level, level);
  EXPECT_NE(findings[0].what.find(part), std::string::npos) << findings[0].what;
}

TEST(JudgeNodes, the_minority_is_named_also_where_the_others_lack_something) {
  Examination examination = healthy_nodes();
  for (int node : {0, 1})
    examination.nodes[static_cast<std::size_t>(node)].hello.traits.erase("torch");
  expect_one(examination, "n3", "equal versions", FindingLevel::error,
             "torch is 2.11.0 here and missing on 2 other nodes");
}

TEST(JudgeNodes, nodes_that_agree_have_no_problem) {
  EXPECT_TRUE(problems_of(healthy_nodes()).empty());
}

TEST(JudgeNodes, the_node_with_another_version_is_named) {
  Examination examination = healthy_nodes();
  examination.nodes[0].hello.traits["lockstep"] = "0.9.0";
  expect_one(examination, "n1", "equal versions", FindingLevel::error,
             "lockstep is 0.9.0 here and 1.0.0 on 2 other nodes");
  examination = healthy_nodes();
  examination.nodes[2].hello.traits["torch"] = "";
  expect_one(examination, "n3", "equal versions", FindingLevel::error, "torch is missing");
  examination = healthy_nodes();
  examination.nodes[1].hello.traits["GPUs"] = "4";
  expect_one(examination, "n2", "equal versions", FindingLevel::note, "4");
}

TEST(JudgeNodes, a_missing_and_a_lost_node_are_errors) {
  Examination examination = healthy_nodes();
  examination.wanted_nodes = 4;
  expect_one(examination, "n1", "nodes", FindingLevel::error, "1 of 4 nodes did not come");
  examination = healthy_nodes();
  examination.nodes[1].lost = "the connection broke";
  expect_one(examination, "n2", "nodes", FindingLevel::error, "the connection broke");
}

TEST(JudgeNodes, a_node_of_which_only_small_messages_come_has_a_wrong_mtu) {
  Examination examination = healthy_nodes();
  examination.wanted_nodes = 4;
  examination.silent = {"10.0.0.4"};
  expect_one(examination, "n1", "mtu", FindingLevel::error, "from 10.0.0.4 small messages arrive");
}

TEST(JudgeNodes, clocks_apart_are_a_warning_and_far_apart_an_error) {
  Examination examination = healthy_nodes();
  examination.clocks[2]->seconds = -3;
  expect_one(examination, "n3", "clocks", FindingLevel::warning, "3.000 s behind n1's");
  examination.clocks[2]->seconds = 900;
  expect_one(examination, "n3", "clocks", FindingLevel::error, "900 s ahead");
  examination.clocks[2] = Examination::Offset{.seconds = 2, .uncertainty = 1.5};
  EXPECT_TRUE(problems_of(examination).empty());  // a slow answer proves little
}

TEST(JudgeNodes, equal_host_names_are_a_warning) {
  Examination examination = healthy_nodes();
  for (DeskNode& node : examination.nodes) node.hello.host = "vm";
  expect_one(examination, "vm", "names", FindingLevel::warning, "3 nodes are called 'vm'");
}

TEST(JudgeNodes, names_that_lead_nowhere_are_a_note) {
  Examination examination = healthy_nodes();
  examination.names[0]->names[1] = {.addresses = {}, .problem = "not known"};
  examination.names[0]->names[2] = {.addresses = {"127.0.1.1"}, .problem = ""};
  expect_one(
      examination, "n1", "names", FindingLevel::note,
      "'n2' cannot be resolved: not known; 'n3' is 127.0.1.1, which that node does not have");
}

TEST(JudgeNodes, where_no_name_is_known_all_nodes_say_the_same) {
  Examination examination = healthy_nodes();
  for (auto& answer : examination.names) {
    for (auto& name : answer->names) name = {.addresses = {}, .problem = "not known"};
  }
  const Findings findings = problems_of(examination);
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].what, "the names of the other nodes: each cannot be resolved: not known");
  EXPECT_EQ(findings[0].what, findings[2].what);
}

TEST(JudgeNodes, a_file_that_is_not_seen_is_an_error_and_one_seen_late_a_warning) {
  Examination examination = healthy_nodes();
  examination.shared_folder = "/shared";
  examination.marks = {MarkAnswer{}, MarkAnswer{.after_ms = 40},
                       MarkAnswer{.problem = "No such file", .after_ms = 10000}};
  expect_one(examination, "n3", "shared folder", FindingLevel::error, "No such file");
  examination.marks[2] = MarkAnswer{.after_ms = 3100};
  expect_one(examination, "n3", "shared folder", FindingLevel::warning, "3100 ms");
  examination.marks[2] = MarkAnswer{.after_ms = 3};
  EXPECT_TRUE(problems_of(examination).empty());
}

TEST(JudgeNodes, of_a_small_job_that_failed_the_node_that_could_not_start_it_is_named) {
  Examination examination = healthy_nodes();
  examination.smoke = {SmokeAnswer{.code = 1, .said = "1 of 3 nodes joined"},
                       SmokeAnswer{.code = 1, .said = "1 of 3 nodes joined"},
                       SmokeAnswer{.code = 2, .said = "this node has no Python with torch"}};
  expect_one(examination, "n3", "smoke", FindingLevel::error, "no Python with torch");
  examination.smoke[2] = SmokeAnswer{.code = 0, .said = "well"};
  expect_one(examination, "n1", "smoke", FindingLevel::error, "1 of 3 nodes joined");
  for (auto& answer : examination.smoke) answer = SmokeAnswer{.code = 0, .said = "well"};
  EXPECT_TRUE(problems_of(examination).empty());
}

TEST(JudgeNodes, a_single_node_may_run_a_small_job) {
  Examination examination = healthy_nodes();
  examination.wanted_nodes = 1;
  examination.nodes.resize(1);
  examination.pairs.clear();
  examination.smoke = {SmokeAnswer{.code = 7, .said = "no"}};
  expect_one(examination, "n1", "smoke", FindingLevel::error, "exit code 7");
}

TEST(JudgePairs, who_cannot_be_reached_is_said_once_with_who_tried) {
  Examination examination = healthy_nodes();
  pair_of(examination, 0, 1).problem = pair_of(examination, 2, 1).problem = "no answer within 2 s";
  expect_one(examination, "n2", "reach", FindingLevel::error,
             "from n1, n3 at 10.0.0.2: no answer within 2 s");
}

TEST(JudgePairs, another_address_of_a_common_network_is_a_warning_and_a_private_one_nothing) {
  Examination examination = healthy_nodes();
  PairResult second = pair_of(examination, 0, 1);
  second.address = "10.1.0.2";
  second.main = false;
  second.problem = "Connection refused";
  examination.pairs.push_back(second);
  expect_one(examination, "n2", "reach", FindingLevel::warning, "10.1.0.2");
  examination.pairs.back().on_common_network = false;
  EXPECT_TRUE(problems_of(examination).empty());
}

TEST(JudgePairs, large_messages_that_never_arrive_are_an_error) {
  Examination examination = healthy_nodes();
  pair_of(examination, 0, 2).stalled = true;
  pair_of(examination, 0, 2).bytes_per_second.reset();
  expect_one(examination, "n1", "mtu", FindingLevel::error, "to n3 pass and large ones never");
}

TEST(JudgePairs, different_sizes_of_packets_are_a_warning_of_the_smaller) {
  Examination examination = healthy_nodes();
  pair_of(examination, 0, 1).path_mtu = pair_of(examination, 0, 2).path_mtu =
      pair_of(examination, 1, 2).path_mtu = pair_of(examination, 2, 1).path_mtu =
          pair_of(examination, 2, 0).path_mtu = 9000;
  expect_one(examination, "n2", "mtu", FindingLevel::warning, "up to 1500 bytes, those back 9000");
}

TEST(JudgePairs, a_slow_sender_is_named_with_the_median) {
  Examination examination = healthy_nodes();
  pair_of(examination, 2, 0).bytes_per_second = pair_of(examination, 2, 1).bytes_per_second = 1e6;
  expect_one(examination, "n3", "bandwidth", FindingLevel::warning,
             "to n1, n2 it sends 8 Mbit/s; the median of all pairs is 8.0 Gbit/s");
}

TEST(JudgePairs, a_way_that_takes_long_is_named) {
  Examination examination = healthy_nodes();
  pair_of(examination, 1, 0).latency_us = 5000;
  expect_one(examination, "n2", "latency", FindingLevel::warning, "5.0 ms");
}

}  // namespace
}  // namespace lockstep
