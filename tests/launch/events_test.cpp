#include "launch/events.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/core/temporary_folder.h"

using lockstep::Event;
using lockstep::event_line;
using lockstep::EventLog;
using lockstep::RawJson;
using lockstep::testing::read_text;
using lockstep::testing::TemporaryFolder;

TEST(Events, a_line_says_when_where_and_what_in_this_order) {
  const lockstep::EventTimes times = {
      .wall = std::chrono::system_clock::time_point(std::chrono::milliseconds(1767323045678)),
      .steady = std::chrono::steady_clock::time_point(std::chrono::nanoseconds(42))};
  const Event event = {.kind = "worker_exit",
                       .epoch = 3,
                       .slot = 7,
                       .fields = {{"pid", std::int64_t{4711}},
                                  {"code", std::string("a\"b\n\xff")},
                                  {"ok", false},
                                  {"seconds", 0.5},
                                  {"failure", RawJson{R"({"rank": 7})"}}}};
  EXPECT_EQ(event_line(event, "node1", times),
            R"({"time":1767323045.678,"mono_ns":42,"host":"node1","epoch":3,"slot":7,)"
            R"("kind":"worker_exit","pid":4711,"code":"a\"b\n)"
            "\xef\xbf\xbd"
            R"(","ok":false,"seconds":0.5,"failure":{"rank":7}})");
  EXPECT_NE(event_line({.kind = "x", .epoch = 0, .slot = {}, .fields = {}}, "h", times)
                .find(R"("slot":null)"),
            std::string::npos);
}

TEST(Events, raw_json_that_is_none_becomes_text) {
  const std::string line = event_line(
      {.kind = "x", .epoch = 0, .slot = {}, .fields = {{"failure", RawJson{"{"}}}}, "h", {});
  EXPECT_EQ(nlohmann::json::parse(line)["failure"], "{");
}

TEST(Events, lines_are_appended_and_heard) {
  const TemporaryFolder folder;
  std::vector<std::string> heard;
  for (const char* kind : {"one", "two"}) {
    EventLog log({.path = folder / "events.jsonl",
                  .host = "node1",
                  .listener = [&](const std::string& line) { heard.push_back(line); }});
    log.write({.kind = kind, .epoch = 1, .slot = {}, .fields = {}});
  }
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_EQ(read_text(folder / "events.jsonl"), heard[0] + "\n" + heard[1] + "\n");
  const auto first = nlohmann::json::parse(heard[0]);
  const auto second = nlohmann::json::parse(heard[1]);
  EXPECT_EQ(second["kind"], "two");
  EXPECT_LE(first["mono_ns"].get<std::int64_t>(), second["mono_ns"].get<std::int64_t>());
}

TEST(Events, a_file_that_cannot_be_written_is_said_once_and_harmless) {
  const TemporaryFolder folder;
  int warnings = 0;
  EventLog log({.path = folder / "missing/events.jsonl",
                .host = "h",
                .listener = nullptr,
                .warn = [&](const std::string&) { ++warnings; }});
  log.write({.kind = "a", .epoch = 0, .slot = {}, .fields = {}});
  log.write({.kind = "b", .epoch = 0, .slot = {}, .fields = {}});
  EXPECT_EQ(warnings, 1);
}
