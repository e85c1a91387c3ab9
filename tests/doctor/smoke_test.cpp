#include "doctor/smoke.h"

#include <gtest/gtest.h>

#include "finding_support.h"

namespace lockstep {
namespace {

bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::ranges::find(words, word) != words.end();
}

TEST(Smoke, one_node_needs_no_rendezvous) {
  const auto words =
      smoke_command({.nodes = 1, .workers = 2}, {.python = "python3"}, "lockstep", "smoke.py");
  EXPECT_TRUE(has(words, "--standalone"));
  EXPECT_FALSE(has(words, "--insecure"));
  EXPECT_EQ(words.back(), "smoke.py");
}

TEST(Smoke, several_nodes_meet_and_the_secret_is_not_in_the_command_line) {
  const SmokeQuestion question{.endpoint = "10.0.0.1:77", .run_id = "r", .nodes = 3, .workers = 8};
  const auto words =
      smoke_command(question, {.program = "./mine", .secret = "sesame"}, "lockstep", "smoke.py");
  EXPECT_TRUE(has(words, "10.0.0.1:77") && has(words, "8") && has(words, "3"));
  EXPECT_FALSE(has(words, "sesame") || has(words, "--insecure"));
  EXPECT_EQ(words.back(), "./mine");
  EXPECT_TRUE(has(smoke_command(question, {}, "lockstep", "smoke.py"), "--insecure"));
  const SmokeSetup encrypted{.secret = "sesame", .tls = true};
  EXPECT_TRUE(has(smoke_command(question, encrypted, "lockstep", "smoke.py"), "--tls"));
}

TEST(Smoke, a_node_that_was_not_told_so_starts_nothing) {
  EXPECT_EQ(run_smoke({}, {.program = "/bin/true"}).code, 2);
  EXPECT_EQ(run_smoke({}, {.enabled = true}).code, 2);
}

TEST(Smoke, what_matters_of_the_output_is_found) {
  EXPECT_EQ(smoke_words(0, "noise\nsmoke: 3 ms\n", ""), "3 ms");
  EXPECT_EQ(smoke_words(0, "", "warnings\n"), "all ranks ended well");
  EXPECT_EQ(smoke_words(1, "", "begin\n  RuntimeError: no way\nrank 1 was stopped\n"),
            "RuntimeError: no way");
  EXPECT_EQ(smoke_words(1, "", "only this\n\n"), "only this");
  EXPECT_EQ(smoke_words(1, "", ""), "it said nothing");
}

TEST(Smoke, a_failure_is_an_error) {
  Judged judged;
  judge_smoke({.code = 0, .said = "3 ms"}, judged.list());
  EXPECT_EQ(judged.worst("smoke"), FindingLevel::ok);
  judge_smoke({.code = 1, .said = "no way"}, judged.list());
  EXPECT_EQ(judged.worst("smoke"), FindingLevel::error);
  EXPECT_TRUE(judged.every_problem_has_a_cure());
}

}  // namespace
}  // namespace lockstep
