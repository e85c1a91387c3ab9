#include <csignal>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launch/messages.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

NodeInfo some_node() {
  return {.id = "id",
          .host = "h\"\xc3\xa4",
          .address = "fd00::1",
          .seen_at = "fd00::2",
          .node_rank = 3,
          .workers = 8,
          .role = "trainer",
          .pid = 4711};
}

JobTerms some_terms() {
  return {.run_id = "r",
          .min_nodes = 2,
          .max_nodes = 5,
          .max_restarts = 3,
          .max_replacements = 9,
          .min_world = 2,
          .local_store = true,
          .beat_interval = Time(7),
          .beat_limit = Time(21)};
}

WorkerFailed some_failure() {
  return {.epoch = 4,
          .rank = 9,
          .code = 139,
          .signal = 11,
          .started = false,
          .age = Time(1234567890123),
          .details = "{\"a\":1}",
          .progress = "at step 3"};
}

RankRecovers some_recovery() {
  return {.epoch = 4, .rank = 9, .step = 812, .able = false};
}

Membership some_membership() {
  return {.epoch = 4,
          .restart_count = 2,
          .group_rank = 1,
          .places = 6,
          .first_role_rank = 4,
          .role_world_size = 6,
          .nodes = {{"a", "10.0.0.1", "", 4, 0}, {"b", "10.0.0.2", "10.9.9.9", 2, 4}},
          .left_out = {1, 3}};
}

// One of each kind, no field with its default value.
std::vector<Message> all_kinds() {
  return {
      Join{.node = some_node(),
           .terms = some_terms(),
           .hosts_coordinator = true,
           .phase = NodePhase::running,
           .epoch = 4,
           .restart_count = 2,
           .ready = true,
           .store_port = 29500,
           .failures = {some_failure()},
           .recovers = {some_recovery()}},
      Ready{4, 29500},
      some_failure(),
      WorkersSucceeded{4},
      Stopped{4, {1, 5}},
      Leave{2, "SIGINT"},
      Refused{"no"},
      Status{"1 of 2"},
      Prepare{some_membership(), true, {1, 3}, "why"},
      Start{4, "10.0.0.1", 29500},
      Stop{4, 2, "why"},
      Finish{.code = 75, .reason = "why", .failures = {some_failure()}, .stopped_ranks = {0, 2}},
      Beat{},
      AskStacks{3, std::chrono::seconds(7)},
      FindStacks{4, std::chrono::seconds(8)},
      FoundStacks{5, "{}"},
      StacksDone{6, {"a", "b"}},
      some_recovery(),
      CannotReform{4, "why"},
      RanksRejected{4, {2, 3}, "why"},
      Recovered{4, 812, Time(310)},
      PassSignal{.signal = SIGUSR1, .time_left = Time(60)}};
}

TEST(MessageCodec, EveryKindSurvivesTheWayAndBack) {
  const std::vector<Message> kinds = all_kinds();
  ASSERT_EQ(kinds.size(), std::variant_size_v<Message>);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    ASSERT_EQ(kinds[i].index(), i);
    const std::string text = encode(kinds[i]);
    const Message back = decode(text);
    EXPECT_EQ(back.index(), i) << text;
    EXPECT_EQ(encode(back), text);
  }
}

TEST(MessageCodec, FieldsArriveAsTheyWereSent) {
  const auto join = std::get<Join>(decode(encode(all_kinds().front())));
  EXPECT_EQ(join.node, some_node());
  EXPECT_EQ(join.terms, some_terms());
  EXPECT_TRUE(join.hosts_coordinator);
  EXPECT_EQ(join.phase, NodePhase::running);
  EXPECT_EQ(join.failures, std::vector{some_failure()});
  EXPECT_EQ(join.recovers, std::vector{some_recovery()});
  const Prepare prepare{.membership = some_membership(), .carries_over = true, .replaced = {5}};
  const auto prepared = std::get<Prepare>(decode(encode(prepare)));
  EXPECT_EQ(prepared.membership, some_membership());
  EXPECT_TRUE(prepared.carries_over);
  EXPECT_EQ(prepared.replaced, std::vector{5});
}

TEST(MessageCodec, ANodeWithoutARankStaysWithoutOne) {
  Join join;
  join.node = some_node();
  join.node.node_rank.reset();
  EXPECT_EQ(std::get<Join>(decode(encode(join))).node.node_rank, std::nullopt);
}

TEST(MessageCodec, BytesThatAreNoTextDoNotBreakAMessage) {
  const auto status = std::get<Status>(decode(encode(Status{"disk \xff full"})));
  EXPECT_NE(status.text.find("full"), std::string::npos);
}

TEST(MessageCodec, EveryFieldIsNeededAndOfItsType) {
  for (const Message& message : all_kinds()) {
    const json whole = json::parse(encode(message));
    for (const auto& [name, value] : whole.items()) {
      json less = whole;
      less.erase(name);
      EXPECT_THROW(decode(less.dump()), InvalidArgument) << less.dump();
      json other = whole;
      other[name] = json::array({json::object()});
      EXPECT_THROW(decode(other.dump()), InvalidArgument) << other.dump();
    }
  }
}

TEST(MessageCodec, FieldsWithinFieldsAreChecked) {
  const auto refuse = [](const Message& message, const std::string& pointer, const json& value) {
    json changed = json::parse(encode(message));
    changed[json::json_pointer(pointer)] = value;
    EXPECT_THROW(decode(changed.dump()), InvalidArgument) << changed.dump();
  };
  const Message join = all_kinds().front();
  refuse(join, "/node/id", "");
  refuse(join, "/node/workers", 0);
  refuse(join, "/node/node_rank", -1);
  refuse(join, "/node", 7);
  refuse(join, "/terms/min_nodes", 0);
  refuse(join, "/phase", 6);
  refuse(join, "/store_port", 65536);
  refuse(join, "/failures/0/code", 0);
  refuse(join, "/failures/0/age_ns", -1);
  refuse(join, "/recovers/0/step", -1);
  refuse(Prepare{.membership = some_membership()}, "/group_rank", 2);
  refuse(Prepare{.membership = some_membership()}, "/left_out", {3, 1});
  refuse(Prepare{.membership = some_membership()}, "/nodes/1/workers", "2");
  refuse(Prepare{.membership = some_membership()}, "/nodes", json::array());
  refuse(Stopped{4, {1}}, "/stopped_ranks/0", -1);
  refuse(Ready{4, 1}, "/epoch", 18446744073709551615ULL);
  refuse(Ready{4, 1}, "/epoch", 1.5);
  refuse(Stop{4, 2, ""}, "/signal", 65);
  refuse(Finish{}, "/code", 256);
}

TEST(MessageCodec, WhatIsNoMessageIsRefused) {
  for (const char* text : {"", "{", "null", "[]", "7", "\"beat\"", "{}", "{\"kind\":7}",
                           "{\"kind\":\"dance\"}", "{\"kind\":\"beat\"} x", "\xff\xfe"}) {
    EXPECT_THROW(decode(text), InvalidArgument) << text;
  }
}

}  // namespace
}  // namespace lockstep
