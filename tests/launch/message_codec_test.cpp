#include <csignal>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "launch/messages.h"
#include "launch/version.h"
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
          .pid = 4711,
          .version = lockstep_version(),
          .program = {.name = "train.py", .digest = "d", .arguments = "a"}};
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
          .group_world_size = 2,
          .places = 6,
          .first_role_rank = 4,
          .role_world_size = 6,
          .self = {"b", "10.0.0.2", "10.9.9.9", 2, 4},
          .nodes = {{"a", "10.0.0.1", "", 4, 0}, {"b", "10.0.0.2", "10.9.9.9", 2, 4}},
          .left_out = {1, 3, 4}};
}

NodeAddress some_address() {
  return {.address = "10.0.0.1",
          .prefix_length = 24,
          .interface = "eth0",
          .speed = 10000,
          .port = 40000,
          .allowed = false};
}

// One of each kind, no field with its default value.
std::vector<Message> all_kinds() {
  return {Join{.node = some_node(),
               .terms = some_terms(),
               .hosts_coordinator = true,
               .phase = NodePhase::running,
               .epoch = 4,
               .restart_count = 2,
               .ready = true,
               .store_port = 29500,
               .failures = {some_failure()},
               .recovers = {some_recovery()},
               .wall_clock = Time(1700000000)},
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
          Finish{.code = 75,
                 .reason = "why",
                 .failures = {some_failure()},
                 .more_failed = {7, 8},
                 .stopped_ranks = {0, 2}},
          Beat{},
          AskStacks{3, std::chrono::seconds(7)},
          FindStacks{4, std::chrono::seconds(8)},
          FoundStacks{5, "{}"},
          StacksDone{6, {"a", "b"}},
          some_recovery(),
          CannotReform{4, "why"},
          RanksRejected{4, {2, 3}, "why"},
          Recovered{4, 812, Time(310)},
          PassSignal{.signal = SIGUSR1, .time_left = Time(60)},
          AskAddresses{8},
          Addresses{8, {some_address()}, "--local-addr"},
          ProbeNodes{9, {{1, 2, "id", "10.0.0.1", 40000}}},
          Probed{9, {{1, 2, "no answer"}}}};
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
  const auto addresses = std::get<Addresses>(decode(encode(Addresses{8, {some_address()}, "x"})));
  EXPECT_EQ(addresses.addresses, std::vector{some_address()});
  const std::vector<ProbeTarget> targets = {{1, 2, "id", "10.0.0.1", 40000}};
  EXPECT_EQ(std::get<ProbeNodes>(decode(encode(ProbeNodes{9, targets}))).targets, targets);
  const std::vector<ProbeFailure> failures = {{1, 2, "no answer"}};
  EXPECT_EQ(std::get<Probed>(decode(encode(Probed{9, failures}))).failures, failures);
}

TEST(MessageCodec, ANodeWithAnotherVersionIsNamedWhateverElseItSays) {
  json join = json::parse(encode(all_kinds().front()));
  join["node"]["version"] = "9.9.9";
  join.erase("terms");
  join.erase("epoch");
  try {
    decode(join.dump());
    FAIL() << "it was taken";
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("9.9.9"), std::string::npos) << text;
    EXPECT_NE(text.find(lockstep_version()), std::string::npos) << text;
    EXPECT_NE(text.find(some_node().host), std::string::npos) << text;
  }
}

TEST(MessageCodec, WhatConcernsManyRanksStaysShort) {
  Prepare prepare{.membership = some_membership()};
  prepare.membership.places = 100'000;
  prepare.membership.nodes.clear();
  for (int place = 5'000; place < 9'000; ++place) prepare.membership.left_out.push_back(place);
  const std::string text = encode(prepare);
  EXPECT_LT(text.size(), 600u);
  EXPECT_EQ(std::get<Prepare>(decode(text)).membership, prepare.membership);
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
  refuse(Prepare{.membership = some_membership()}, "/left_out", {{3, 4}, {1, 1}});
  refuse(Prepare{.membership = some_membership()}, "/left_out", {{3, 1}});
  refuse(Prepare{.membership = some_membership()}, "/left_out", {{0, 9'000'000}});
  refuse(Prepare{.membership = some_membership()}, "/left_out", {3, 4});
  refuse(Prepare{.membership = some_membership()}, "/nodes/1/workers", "2");
  refuse(Prepare{.membership = some_membership()}, "/group_world_size", 3);
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
