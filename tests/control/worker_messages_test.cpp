#include "control/worker_messages.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

using namespace lockstep;
using std::chrono::milliseconds;

TEST(WorkerMessages, come_back_as_they_were_sent) {
  const std::vector<MessageFromWorker> from = {
      WorkerHello{.pid = 4711, .rank = 3, .slot = 2, .epoch = 7, .program = "train \"x\"\n"},
      WorkerHello{.pid = 4712, .program = "train", .spare = true},
      WorkerHeartbeat{.step = -1, .phase = "forward", .age = milliseconds(1500)},
      WorkerHeartbeat{.step = 5,
                      .phase = "train",
                      .age = milliseconds(9),
                      .waits_for = "all_reduce",
                      .alone = milliseconds(3),
                      .longest_alone = milliseconds(70),
                      .visits = 812,
                      .work = {.steps = 4,
                               .data = std::chrono::microseconds(1),
                               .compute = std::chrono::microseconds(2),
                               .waiting = std::chrono::microseconds(3)}},
      WorkerLostPeers{.ranks = {0, 5}, .operation = "all_reduce"},
      WorkerLostPeers{},
      WorkerLeaving{},
      WorkerRecovers{.epoch = 3, .step = 812},
      WorkerRecovers{.epoch = 3, .step = 813, .able = false},
      WorkerRejected{.ranks = {1}, .reason = "its state differs"},
      WorkerRejected{.ranks = {2}, .reason = "its state differs", .epoch = 4}};
  for (const auto& message : from)
    EXPECT_EQ(decode_from_worker(encode_from_worker(message)), message);
  const std::vector<MessageToWorker> to = {
      WorkerWelcome{.epoch = 1, .heartbeat_interval = milliseconds(250)},
      WorkerWelcome{.protocol = 2, .epoch = 1, .replaces = true},
      RevokeWorld{.epoch = 4, .reason = "rank 1 died", .lost_ranks = {1}},
      WorkerRefused{.reason = "because"},
      StopWorker{.reason = "SIGTERM", .remaining = milliseconds(30000)},
      NewWorld{.epoch = 2,
               .rank = 1,
               .world_size = 4,
               .local_rank = 1,
               .local_world_size = 2,
               .node_rank = 0,
               .restart_count = 1,
               .master_addr = "10.0.0.1",
               .master_port = 29500,
               .replaced_slots = {2, 3}},
      TakePlace{.variables = {{"RANK", "1"}, {"LOCKSTEP_EPOCH", "2"}, {"EMPTY", ""}}},
      TakePlace{},
      PingWorker{}};
  for (const auto& message : to) EXPECT_EQ(decode_to_worker(encode_to_worker(message)), message);
}

TEST(WorkerMessages, name_the_field_that_is_wrong) {
  const auto complaint = [](const std::string& text) -> std::string {
    try {
      decode_from_worker(text);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(complaint("no json"), "a message is not a JSON object");
  EXPECT_EQ(complaint("[]"), "a message is not a JSON object");
  EXPECT_EQ(complaint("{}"), "the field 'kind' is missing");
  EXPECT_EQ(complaint(R"({"kind": 1})"), "the field 'kind' is no text");
  EXPECT_EQ(complaint(R"({"kind": "dance"})"), "a worker's message is of a kind that is not known");
  EXPECT_EQ(complaint(R"({"kind": "heartbeat", "step": 1, "phase": ""})"),
            "the field 'age_ms' is missing");
  for (const char* step : {"1.5", "\"1\"", "null", "18446744073709551615", "1e99", "true"}) {
    const std::string text =
        concat(R"({"kind": "heartbeat", "phase": "", "age_ms": 0, "step": )", step, "}");
    EXPECT_NE(complaint(text).find("'step' is no integer"), std::string::npos) << step;
  }
  EXPECT_NE(complaint(R"({"kind": "lost_peers", "operation": "", "ranks": [-1]})"), "");
  EXPECT_NE(complaint(R"({"kind": "lost_peers", "operation": "", "ranks": 3})"), "");
}

TEST(WorkerMessages, a_welcome_of_version_1_does_not_replace_workers) {
  const auto message =
      decode_to_worker(R"({"kind":"welcome","protocol":1,"epoch":2,"heartbeat_interval_ms":1000})");
  EXPECT_FALSE(std::get<WorkerWelcome>(message).replaces);
  EXPECT_THROW(
      decode_to_worker(
          R"({"kind":"welcome","protocol":2,"epoch":2,"heartbeat_interval_ms":1,"replaces":1})"),
      InvalidArgument);
}

TEST(WorkerMessages, a_place_is_made_of_texts) {
  EXPECT_THROW(decode_to_worker(R"({"kind":"take_place"})"), InvalidArgument);
  EXPECT_THROW(decode_to_worker(R"({"kind":"take_place","variables":["RANK"]})"), InvalidArgument);
  EXPECT_THROW(decode_to_worker(R"({"kind":"take_place","variables":{"RANK":1}})"),
               InvalidArgument);
}

TEST(WorkerMessages, a_hello_that_says_nothing_of_it_is_no_spares) {
  const auto message = decode_from_worker(
      R"({"kind":"hello","oldest_protocol":1,"newest_protocol":2,"pid":1,"rank":0,"slot":0,)"
      R"("epoch":1,"program":"x"})");
  EXPECT_FALSE(std::get<WorkerHello>(message).spare);
}

TEST(WorkerMessages, an_endless_time_does_not_overflow_into_the_past) {
  EXPECT_THROW(
      decode_to_worker(R"({"kind":"stop","reason":"","remaining_ms":9223372036854775807})"),
      InvalidArgument);
}

TEST(WorkerMessages, fields_of_a_later_version_are_skipped) {
  EXPECT_EQ(decode_to_worker(R"({"kind": "ping", "colour": "red"})"),
            MessageToWorker(PingWorker{}));
}

TEST(WorkerMessages, text_that_is_not_utf8_is_replaced) {
  const auto message = decode_to_worker(encode_to_worker(WorkerRefused{.reason = "a\xff"}));
  EXPECT_EQ(std::get<WorkerRefused>(message).reason, "a\xef\xbf\xbd");
}
