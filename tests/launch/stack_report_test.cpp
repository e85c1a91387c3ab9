#include "launch/stack_report.h"

#include <chrono>
#include <map>
#include <sstream>
#include <variant>

#include <gtest/gtest.h>

#include "control/link_session.h"
#include "launch/stack_collection.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::hours kLong{1};

NodeStacks node(const std::string& host, std::vector<RankStack> ranks) {
  return {.host = host, .ranks = std::move(ranks), .advice = {}};
}

std::string printed(const std::vector<NodeStacks>& nodes) {
  std::ostringstream out;
  print_stacks(nodes, out);
  return out.str();
}

TEST(StackReport, nodes_are_printed_together_in_rank_order) {
  EXPECT_EQ(printed({node("b", {{2, 21, "  in read\n", true}, {3, 22, "  in write\n", true}}),
                     node("a", {{1, 12, "  in write\n", true}, {0, 11, "  in read\n", true}})}),
            "ranks 0, 2 (processes 11 on a, 21 on b):\n  in read\n"
            "ranks 1, 3 (processes 12 on a, 22 on b):\n  in write\n");
  EXPECT_EQ(printed({node("a", {{0, 11, "  in read\n", true}})}),
            "rank 0 (process 11):\n  in read\n");
}

TEST(StackReport, json_brings_everything_back) {
  NodeStacks stacks = node("h\"", {{3, 4711, "  line\n  \xc3\xa4\n", true}, {4, 4712, "", false}});
  stacks.advice = {"install gdb"};
  const std::string json = to_json(stacks);
  EXPECT_EQ(json.find('\n'), std::string::npos);
  EXPECT_EQ(node_stacks_from_json(json), stacks);
}

TEST(StackReport, a_node_with_endless_stacks_still_fits_a_message) {
  std::vector<RankStack> ranks;
  for (int rank = 0; rank < 500; ++rank) {
    ranks.push_back({rank, 1, std::string(1 << 20, '\n'), true});
  }
  const std::string json = to_json(node("a", std::move(ranks)));
  EXPECT_LT(json.size() * 11 / 10, LinkSession::kMaxMessageBytes * 2);  // as JSON within JSON
  ASSERT_TRUE(node_stacks_from_json(json));
  EXPECT_EQ(node_stacks_from_json(json)->ranks.size(), 500u);
}

TEST(StackReport, what_is_no_report_is_none) {
  for (const char* text : {"", "{}", "[]", "{\"host\":1,\"ranks\":[],\"advice\":[]}",
                           "{\"host\":\"a\",\"ranks\":[{}],\"advice\":[]}"}) {
    EXPECT_FALSE(node_stacks_from_json(text)) << text;
  }
}

struct StackCollectionTest : ::testing::Test {
  template <typename Kind>
  std::vector<Kind> sent_to(LinkId link) {
    std::vector<Kind> found;
    for (const auto& [to, message] : sent) {
      const auto* kind = std::get_if<Kind>(&message);
      if (to == link && kind != nullptr) found.push_back(*kind);
    }
    return found;
  }

  EventLoop loop;
  std::vector<std::pair<LinkId, Message>> sent;
  StackCollection stacks{
      loop, [this](LinkId link, const Message& message) { sent.emplace_back(link, message); }};
};

TEST_F(StackCollectionTest, who_asks_gets_every_answer_and_then_the_end) {
  stacks.ask(2, AskStacks{77, kLong}, {{0, "a"}, {2, "b"}});
  ASSERT_EQ(sent_to<FindStacks>(0).size(), 1u);
  ASSERT_EQ(sent_to<FindStacks>(2).size(), 1u);
  const auto id = sent_to<FindStacks>(0)[0].id;
  stacks.on_found(0, {id, "of a"});
  stacks.on_found(0, {id, "of a, again"});
  EXPECT_TRUE(sent_to<StacksDone>(2).empty());
  stacks.on_found(2, {id, "of b"});
  ASSERT_EQ(sent_to<FoundStacks>(2).size(), 2u);
  EXPECT_EQ(sent_to<FoundStacks>(2)[0].id, 77u);
  EXPECT_EQ(sent_to<FoundStacks>(2)[1].stacks, "of b");
  ASSERT_EQ(sent_to<StacksDone>(2).size(), 1u);
  EXPECT_TRUE(sent_to<StacksDone>(2)[0].missing.empty());
}

TEST_F(StackCollectionTest, nodes_that_do_not_answer_are_named_at_the_limit) {
  stacks.ask(0, AskStacks{1, milliseconds(50)}, {{0, "a"}, {1, "b"}, {2, "c"}});
  stacks.on_found(1, {sent_to<FindStacks>(1)[0].id, "of b"});
  while (sent_to<StacksDone>(0).empty()) loop.run_once(milliseconds(100));
  EXPECT_EQ(sent_to<StacksDone>(0)[0].missing, (std::vector<std::string>{"a", "c"}));
}

TEST_F(StackCollectionTest, a_node_that_goes_is_named_at_once) {
  stacks.ask(0, AskStacks{1, kLong}, {{0, "a"}, {1, "b"}});
  stacks.on_found(0, {sent_to<FindStacks>(0)[0].id, "of a"});
  stacks.on_closed(1);
  ASSERT_EQ(sent_to<StacksDone>(0).size(), 1u);
  EXPECT_EQ(sent_to<StacksDone>(0)[0].missing, std::vector<std::string>{"b"});
}

TEST_F(StackCollectionTest, nothing_is_sent_to_an_asker_that_has_gone) {
  stacks.ask(1, AskStacks{1, kLong}, {{0, "a"}});
  stacks.on_closed(1);
  stacks.on_found(0, {sent_to<FindStacks>(0)[0].id, "of a"});
  EXPECT_TRUE(sent_to<FoundStacks>(1).empty());
}

}  // namespace
}  // namespace lockstep
